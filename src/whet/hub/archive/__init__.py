"""Static checks of what is pushed: pure functions over bytes. Nothing is unpacked to disk, imported or run."""
