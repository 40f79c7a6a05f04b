"""Coding agents that others wrote, as programs of a harness."""
