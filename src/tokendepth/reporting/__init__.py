"""Rows in; table, figure or page out."""
