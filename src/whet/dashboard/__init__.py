"""Runs in a browser: live, read-only pages of what is on disk, for a laptop and for the service."""
