"""What a run is on disk, for training, evaluations and searches alike; the rooms above add what differs.

Here alone: the names of its files, its lock, the tail of a file that grows, the log, the index and the search.
"""
