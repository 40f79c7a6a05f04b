"""The viewer's screens, a module each."""
