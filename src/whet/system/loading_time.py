"""Less garbage collection while libraries are loaded.

Python's collector looks for garbage at every few hundred new objects, and of what is imported none is: a sixth of the
time that torch and transformers take.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS = 20_000
"""So many make a collection of the youngest generation worth it."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect only once in `NEW_OBJECTS` new objects; what the program set higher, or off, stays."""
    before = gc.get_threshold()
    if 0 < before[0] < NEW_OBJECTS:
        gc.set_threshold(NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
