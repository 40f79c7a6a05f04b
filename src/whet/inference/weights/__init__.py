"""Weights of the embedded engine: read, fused, mapped, with adapters."""
