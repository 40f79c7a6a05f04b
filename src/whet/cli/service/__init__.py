"""Commands about the training service."""
