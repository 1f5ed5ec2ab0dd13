"""Plain blocks, and what they store. Nothing here knows of depth."""
