"""Commands that speak to a hub."""
