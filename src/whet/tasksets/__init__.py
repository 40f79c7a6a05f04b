"""Tasksets (tasks and their scoring) and harnesses (how a model attempts them). `Env` combines the two."""
