"""vLLM as the engine: servers that whet starts, feeds and stops, or that run already."""
