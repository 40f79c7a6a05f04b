"""Evaluations on disk: finding, reading and exporting them."""
