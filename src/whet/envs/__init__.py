"""Environments: the rollout loop and its kinds, and loading them by id."""
