"""What is done while an endpoint fails: nobody begins for a while, then one call at a time until one has succeeded.

So an endpoint that is down costs the calls that were in flight when it went down and one call for each look at whether
it is back, and not as many as are waiting.
"""

from __future__ import annotations

import asyncio
import contextlib

from whet.errors import ContentFilterError, InfraError, InvalidModelResponseError, ModelError

BUSY = (408, 409, 425, 429)
"""HTTP statuses that say nothing of what was asked."""
LONGEST_REST_S = 60.0


class Outage:
    """A gate that calls pass before they begin."""

    def __init__(self, most_looks: int, delay: float) -> None:
        """`most_looks` failures of single calls after the first are waited out, `delay` seconds and then twice that."""
        self._most, self._delay = most_looks, delay
        self._failures = 0
        self._looking = False
        self._changed = asyncio.Event()
        self._given_up = asyncio.Event()

    @property
    def lasts(self) -> bool:
        return self._failures > 0

    async def enter(self) -> bool:
        """Returns when a call may begin: at once, or (True) as the one that looks whether the endpoint is back.

        Where nobody is to begin any more, it returns at once as well, for the caller to see.
        """
        while self.lasts and not self._given_up.is_set():
            if not self._looking:
                self._looking = True
                try:
                    await self._rest(min(LONGEST_REST_S, self._delay * 2 ** (self._failures - 1)))
                except asyncio.CancelledError:
                    self._stop_looking()
                    raise
                return True
            await self._changed.wait()
        return False

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._given_up.wait(), seconds)

    def give_up(self) -> None:
        """Nobody waits any more: the run ends."""
        self._given_up.set()
        self._tell()

    def succeeded(self, looked: bool) -> None:
        """A call has ended as it should."""
        self._failures = 0
        if looked:
            self._looking = False
        self._tell()

    def failed(self, looked: bool) -> bool:
        """A call has failed for the endpoint's sake; whether that is still to be waited out."""
        if looked:
            self._failures += 1
            self._stop_looking()
        elif not self.lasts:
            self._failures = 1
        return self._failures <= self._most

    def left(self, looked: bool) -> None:
        """A call has ended in neither way: it was cancelled, or never begun."""
        if looked:
            self._stop_looking()

    def _stop_looking(self) -> None:
        self._looking = False
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def endpoint_failure(error: BaseException | None) -> str | None:
    """What failed around a rollout, in a line; None where it was the model, the task, or nothing.

    A judge's endpoint counts as well, which fails as the cause of a reward that could not be computed.
    """
    link = error
    while link is not None:
        if isinstance(link, ContentFilterError | InvalidModelResponseError):
            return None
        status = getattr(link, "status_code", None)
        if isinstance(link, InfraError | ModelError) or (isinstance(status, int) and (status in BUSY or status >= 500)):
            return f"{type(link).__name__}: {link}".splitlines()[0]
        link = link.__cause__
    return None
