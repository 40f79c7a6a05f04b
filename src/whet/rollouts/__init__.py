"""Run many rollouts: groups, concurrency, retries, results on disk."""
