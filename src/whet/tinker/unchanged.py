"""Rows that many requests need, in memory as long as nothing in the database changed but the log.

Another process may share the database (`whet service up --tinker`): what it changes is seen after `HELD_S`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool

from whet.hub.storage.database import Database

T = TypeVar("T")
MOST = 10_000
HELD_S = 1.0


class Unchanged:
    """Called from one event loop, that of the routes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._at, self._until = -1, 0.0
        self._reads: dict[Hashable, asyncio.Task[Any]] = {}

    async def value(self, key: Hashable, read: Callable[[], T]) -> T:
        """What `read` returned since the last change; it is called in a thread, and may raise."""
        now, changes = time.monotonic(), self._database.changes
        if changes != self._at or now >= self._until or len(self._reads) > MOST:
            self._reads, self._at, self._until = {}, changes, now + HELD_S
        task = self._reads.get(key)
        if task is None:
            task = self._reads[key] = asyncio.create_task(run_in_threadpool(read))
        try:
            value: T = await asyncio.shield(task)
        except Exception:
            self._reads.pop(key, None)
            raise
        return value
