"""What one user's requests, and all of them, may take of the log: how many wait, and the bytes that it keeps of them.

The counts here only grow, and so are never too low; where one reaches its limit, it is counted in the database. Steps
and ends of models are not counted by bytes, since bodies before them are dropped by what they lead to.
"""

from __future__ import annotations

import time
from collections import Counter

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from whet.hub.errors import HubError
from whet.tinker.storage.tables import TinkerRequest

COUNTED_EVERY_S = 1.0
"""Bytes are counted over the whole table."""
FREEING = ("optim_step", "unload_model")


class LogQuota:
    """Called within writes of the database, one at a time."""

    def __init__(self, waiting: int, log_bytes: int, own_log_bytes: int) -> None:
        self._most, self._log_bytes, self._own_log_bytes = waiting, log_bytes, own_log_bytes
        self._waiting: Counter[str] = Counter()
        self._bytes: Counter[str] | None = None
        self._counted_at = 0.0

    def take(self, session: Session, owner: str, kind: str, size: int) -> None:
        """Count one more request, whose body has so many bytes. Raises `HubError` (too_many) at a limit."""
        if self._waiting[owner] >= self._most:
            count = select(func.count()).where(TinkerRequest.owner == owner, TinkerRequest.state == "waiting")
            self._waiting[owner] = int(session.scalar(count) or 0)
            if self._waiting[owner] >= self._most:
                raise HubError("too_many", f"{self._waiting[owner]} requests of {owner} wait already. Fetch answers.")
        if kind not in FREEING:
            self._check_bytes(session, owner, size)
        self._waiting[owner] += 1
        assert self._bytes is not None or kind in FREEING
        if self._bytes is not None:
            self._bytes[owner] += size

    def _check_bytes(self, session: Session, owner: str, size: int) -> None:
        if self._bytes is None or self._full(owner, size):
            now = time.monotonic()
            if self._bytes is None or now - self._counted_at > COUNTED_EVERY_S:
                kept = select(TinkerRequest.owner, func.sum(func.length(TinkerRequest.body)))
                rows = session.execute(kept.where(TinkerRequest.body.is_not(None)).group_by(TinkerRequest.owner))
                self._bytes, self._counted_at = Counter({name: int(total) for name, total in rows}), now
            if self._full(owner, size):
                own, everybody = self._bytes[owner], self._bytes.total()
                raise HubError(
                    "too_many",
                    f"the log has {own} bytes of requests of {owner} and {everybody} in all; with {size} more they "
                    f"would be above {self._own_log_bytes} or {self._log_bytes}. It keeps them until their model has "
                    "made optimiser steps after them: call optim_step, or unload models.",
                )

    def _full(self, owner: str, size: int) -> bool:
        assert self._bytes is not None
        return self._bytes[owner] + size > self._own_log_bytes or self._bytes.total() + size > self._log_bytes
