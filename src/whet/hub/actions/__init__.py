"""Trials of what was pushed, in a sandbox."""
