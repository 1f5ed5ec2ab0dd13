"""Recipes: full configurations as functions. The docstring holds command, hardware, expected."""
