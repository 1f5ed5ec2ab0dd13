"""Texts, tokens, and how they are shown."""
