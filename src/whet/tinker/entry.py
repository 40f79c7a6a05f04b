"""The way into the log: requests that arrive while others are being written are written together.

A transaction waits for the disk; so what many clients send at a time takes as many transactions as one client's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from starlette.concurrency import run_in_threadpool

from whet.hub.errors import HubError
from whet.hub.storage.database import LOG_ONLY
from whet.tinker import log

if TYPE_CHECKING:
    from whet.tinker.server import TinkerServer


class Entering(NamedTuple):
    """A request, as `log.accept` takes it."""

    owner: str
    model_id: str
    seq: int | None
    kind: str
    body: bytes


class LogEntry:
    """Called from one event loop, that of the routes."""

    def __init__(self, server: TinkerServer) -> None:
        self._server = server
        self._waiting: list[tuple[Entering, asyncio.Future[str]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def put(self, request: Entering) -> str:
        """The id of a request once it is in the log. Raises `HubError` as `log.accept` does."""
        written: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, written))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="whet tinker log")
        return await written

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            ends = await run_in_threadpool(self._written, [request for request, _ in batch])
            for (_, written), end in zip(batch, ends, strict=True):
                if written.cancelled():
                    continue
                if isinstance(end, str):
                    written.set_result(end)
                else:
                    written.set_exception(end)
            self._server.work.set()

    def _written(self, requests: Sequence[Entering]) -> list[str | Exception]:
        ends: list[str | Exception] = []
        try:
            with self._server.hub.database.write() as session:
                session.info[LOG_ONLY] = True
                for request in requests:
                    try:
                        ends.append(log.accept(self._server, session, *request))
                    except HubError as error:  # nothing of it was written
                        ends.append(error)
        except Exception as error:
            if len(requests) == 1:
                return [error]
            return [self._written([request])[0] for request in requests]  # it may be one that fails
        return ends
