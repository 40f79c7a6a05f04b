"""What a client of the service does: packs a config with its files, submits it, and follows what became of it."""
