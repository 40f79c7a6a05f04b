"""A client that goes away: whoever works for it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


async def client_gone(receive: Receive) -> None:
    """Once the client has gone away. The whole of its request has been received before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """What `work` gives, unless the client goes away meanwhile: then `work` is cancelled.

    Raises `ClientDisconnect` in that case. `work` is awaited in this very task, so that an answer
    which is there at once is sent at once.
    """
    task, gone = asyncio.current_task(), False
    assert task is not None

    def leave(watching: asyncio.Future[None]) -> None:
        nonlocal gone
        if not watching.cancelled():
            gone = True
            task.cancel()

    watching = asyncio.ensure_future(client_gone(receive))
    watching.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if gone and not task.uncancel():
            raise ClientDisconnect from None
        raise
    finally:
        watching.remove_done_callback(leave)
        watching.cancel()
