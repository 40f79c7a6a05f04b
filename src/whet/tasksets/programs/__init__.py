"""Programs, and how they call the model of their rollout."""
