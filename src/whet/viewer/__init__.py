"""`whet view`: rollouts of evaluations and of training in the terminal."""
