"""A runner: takes runs from the queue, starts each behind a shim, follows them, and reports their ends."""
