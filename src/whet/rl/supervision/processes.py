"""Processes of a run: how they start, and that none outlives the run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import BaseContext

START_METHOD = "spawn"
"""From nothing. A fork, which Python and libraries choose on Linux, is not safe with torch's threads."""


def process_context() -> BaseContext:
    return get_context(START_METHOD)


def follow_parent(last: Callable[[], object] | None = None) -> None:
    """In a child: leave Ctrl-C and SIGHUP to the parent, and end with it, however it ends.

    `last` is called then, for what a parent that was killed could not do.
    """
    for number in (signal.SIGINT, signal.SIGHUP):  # the parent decides what Ctrl-C and a closed terminal mean
        signal.signal(number, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        connection.wait([parent.sentinel])
        if last is not None:
            last()
        os._exit(0)

    threading.Thread(target=end_with_parent, name="whet parent watch", daemon=True).start()
