"""Training: windows of text, an objective, a loop, and checkpoints that a kill cannot tear."""
