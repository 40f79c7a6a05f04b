"""The embedded engine's parts: scheduling, KV cache, forward pass, sampling."""
