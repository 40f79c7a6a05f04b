"""The routes that the SDK calls."""
