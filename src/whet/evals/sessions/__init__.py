"""Running evaluations: their tasks, their directories, resuming."""
