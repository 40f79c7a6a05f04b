"""Read an answer out of a message."""
