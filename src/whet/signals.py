"""Ctrl-C and SIGTERM, while an event loop runs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_stopping_signals(handle: Callable[[int], None]) -> Iterator[None]:
    """Inside, the running loop calls `handle` with the number of a signal that asks to stop.

    Outside the main thread signals belong to whoever runs us, and nothing changes.
    """
    loop = asyncio.get_running_loop()
    try:
        for number in STOPPING:
            loop.add_signal_handler(number, handle, number)
    except (ValueError, RuntimeError):
        yield
        return
    try:
        yield
    finally:
        for number in STOPPING:
            loop.remove_signal_handler(number)
