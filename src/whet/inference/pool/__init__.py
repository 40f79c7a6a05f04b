"""Several engines as one: placement of requests, weights for all, restarts."""
