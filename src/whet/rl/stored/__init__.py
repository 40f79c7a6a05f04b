"""Runs on disk: finding them, reading what they wrote, comparing, exporting and stopping them. Nothing here trains."""
