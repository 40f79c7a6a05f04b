"""Close at exit the environments that nobody has closed, so that their `@teardown` handlers run.

Only environments that have such handlers are kept track of, and only while they live.
"""

from __future__ import annotations

import asyncio
import atexit
import weakref
from typing import Protocol


class Closable(Protocol):
    async def close(self) -> None: ...


_open: weakref.WeakSet[Closable] = weakref.WeakSet()
_registered = False


def close_at_exit(env: Closable) -> None:
    global _registered
    _open.add(env)
    if not _registered:
        atexit.register(_close_all)
        _registered = True


def _close_all() -> None:
    for env in list(_open):
        asyncio.run(env.close())
