"""Generated terminal tasks: seeded families, a ladder of levels, and the verifier that all of them share."""
