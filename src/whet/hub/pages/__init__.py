"""Pages for people: rendered here, without scripts."""
