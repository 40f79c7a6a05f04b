"""The display of a running search, on standard error: a result on standard output can be piped and redirected."""
