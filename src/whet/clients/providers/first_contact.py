"""Whether an endpoint is worth waiting for that has not been reached yet: for some seconds, and then no longer.

A server that is being restarted is waited for with all the retries a request has. But an address that was never reached
is most likely wrong, or the server is not running; waiting a minute for that is of no use.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

GRACE_S = 5.0
"""Seconds that a server has to come up, after the first connection to it failed."""


class FirstContact:
    """Records whether connections to one endpoint succeed or fail."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made = False
        self._failed_at: float | None = None  # the first time

    def made(self) -> None:
        """A request was on its way to the endpoint."""
        self._made = True

    def failed(self) -> bool:
        """A connection could not be opened; returns whether to give up the endpoint."""
        if self._made:
            return False
        now = self._clock()
        if self._failed_at is None:
            self._failed_at = now
        return now - self._failed_at >= GRACE_S


def reason(error: BaseException) -> str:
    """Why a connection could not be opened, in the system's words where it said."""
    found, link = str(error), error.__cause__ or error.__context__
    while link is not None:
        if isinstance(link, OSError) and link.errno and not isinstance(link, ssl.SSLError):
            found = os.strerror(link.errno) if link.errno > 0 else str(link.strerror)  # of name resolution, less than 0
        link = link.__cause__ or link.__context__
    return found or "no connection was made in time"


class GivenUp(BaseException):
    """The endpoint was never reached. Not an `Exception`: after each of those the providers' packages retry."""


_may_give_up: ContextVar[bool] = ContextVar("whet_may_give_up", default=False)


def may_give_up() -> bool:
    """Whether the caller knows what to do with a `GivenUp`."""
    return _may_give_up.get()


@contextmanager
def giving_up() -> Iterator[None]:
    """Within, an endpoint that was never reached raises `GivenUp`."""
    token = _may_give_up.set(True)
    try:
        yield
    finally:
        _may_give_up.reset(token)
