"""Worker processes that run jobs, for evaluations that are large."""
