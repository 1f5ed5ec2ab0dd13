"""Running models: how fast they are, and what makes them slow."""
