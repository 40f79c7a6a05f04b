"""The service's routes."""
