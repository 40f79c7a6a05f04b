"""The display of running evaluations, on standard error: a result on standard output can be piped and redirected."""
