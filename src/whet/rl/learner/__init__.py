"""Gradients, optimisers and what they are computed with."""
