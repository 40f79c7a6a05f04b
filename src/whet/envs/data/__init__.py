"""Dataset rows: of an environment, and of the named example datasets."""
