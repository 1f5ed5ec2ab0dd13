"""Deciding how deep each token goes (one policy a file), and executing what was decided."""
