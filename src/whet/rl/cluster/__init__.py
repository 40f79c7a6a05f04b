"""A run on a Ray cluster: what a cluster has, where parts go, engines and ranks in actors, how weights travel."""
