"""Ctrl-C and SIGTERM, while an event loop runs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

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


@contextmanager
def cancelled_by_signals(stopped: list[int], restore: Callable[[], Any]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM cancels the calling task and is put into `stopped`; the second ends the process.

    What was saved stays saved; `restore` gives the terminal back before such an end.
    """
    task = asyncio.current_task()
    assert task is not None

    def stop(number: int) -> None:
        if stopped:
            with suppress(Exception):
                restore()
            os._exit(128 + number)
        stopped.append(number)
        task.cancel()

    with on_stopping_signals(stop):
        yield
