"""Scores on held-out text: first whether the model looks ahead, then how well it predicts."""
