"""While an endpoint fails no call begins for a time; then single calls probe it until one succeeds.

So an endpoint that is down costs the calls that were in flight when it went down and one call for each probe, and not
all calls that are waiting.
"""

from __future__ import annotations

import asyncio
import contextlib

from whet.errors import ContentFilterError, InfraError, InvalidModelResponseError, ModelError

BUSY = (408, 409, 425, 429)
"""HTTP statuses that do not depend on the request."""
LONGEST_REST_S = 60.0


class Outage:
    """A gate that calls pass before they begin."""

    def __init__(self, most_probes: int, delay: float) -> None:
        """Waits `delay` seconds after a failure, twice as long after each failed probe; `most_probes` may fail."""
        self._most, self._delay = most_probes, delay
        self._failures = 0
        self._probing = False
        self._changed = asyncio.Event()
        self._given_up = asyncio.Event()

    @property
    def lasts(self) -> bool:
        return self._failures > 0

    async def enter(self) -> bool:
        """Returns when a call may begin; True for the call that probes the endpoint.

        After `give_up` it returns at once, and the caller checks for the failure.
        """
        while self.lasts and not self._given_up.is_set():
            if not self._probing:
                self._probing = True
                try:
                    await self._rest(min(LONGEST_REST_S, self._delay * 2 ** (self._failures - 1)))
                except asyncio.CancelledError:
                    self._stop_probing()
                    raise
                return True
            await self._changed.wait()
        return False

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._given_up.wait(), seconds)

    def give_up(self) -> None:
        """Release all waiting calls: the run ends."""
        self._given_up.set()
        self._wake()

    def succeeded(self, probed: bool) -> None:
        """A call has succeeded."""
        self._failures = 0
        if probed:
            self._probing = False
        self._wake()

    def failed(self, probed: bool) -> bool:
        """A call has failed because of the endpoint. Returns whether to keep waiting for it."""
        if probed:
            self._failures += 1
            self._stop_probing()
        elif not self.lasts:
            self._failures = 1
        return self._failures <= self._most

    def left(self, probed: bool) -> None:
        """A call was cancelled or never begun."""
        if probed:
            self._stop_probing()

    def _stop_probing(self) -> None:
        self._probing = False
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def endpoint_failure(error: BaseException | None) -> str | None:
    """The infrastructure error of a rollout, in one line; None for errors of the model or the task, or none.

    A judge's endpoint counts too: its failure is the cause of a reward that could not be computed.
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
