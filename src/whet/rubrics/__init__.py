"""Score a rollout or a group."""
