"""Reach a model: one interface for providers, engines and scripts."""
