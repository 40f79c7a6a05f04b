"""What a page or a program gets to know of a run. Nothing here knows HTTP."""
