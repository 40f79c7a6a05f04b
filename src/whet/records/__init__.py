"""What a run is on disk, for training, evaluations and searches alike; the rooms above add what differs."""
