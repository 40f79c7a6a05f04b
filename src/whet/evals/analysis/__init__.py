"""What the rows of an evaluation say: scores with their uncertainty, comparison, readiness for training."""
