"""Evaluation runs: a model's scores on an environment's held-out tasks, and what they say about training on it."""
