"""What the layers of a model do to each token."""
