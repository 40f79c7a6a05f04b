"""While an endpoint fails no call begins for a time; then single calls probe it until one succeeds.

So an endpoint that is down costs the calls that were in flight when it went down and one call for each probe, and not
all calls that are waiting.
"""

from __future__ import annotations

import asyncio

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
        self._given_up = False
        self._over = asyncio.Event()
        self._over.set()
        self._probe = asyncio.Lock()  # held by the call that probes

    @property
    def lasts(self) -> bool:
        return not self._over.is_set()

    async def enter(self) -> bool:
        """Returns when a call may begin; True for the call that probes the endpoint.

        After `give_up` it returns at once, and the caller checks for the failure.
        """
        if not self.lasts:
            return False
        await self._probe.acquire()
        try:
            rest = min(LONGEST_REST_S, self._delay * 2 ** (self._failures - 1))
            if self.lasts:
                await asyncio.wait_for(self._over.wait(), rest)
        except TimeoutError:
            return True
        except BaseException:
            self._probe.release()
            raise
        self._probe.release()
        return False

    def give_up(self) -> None:
        """Release all waiting calls: the run ends."""
        self._given_up = True
        self._over.set()

    def succeeded(self, probed: bool) -> None:
        """A call has succeeded."""
        self._failures = 0
        self._over.set()
        self.left(probed)

    def failed(self, probed: bool) -> bool:
        """A call has failed because of the endpoint. Returns whether to keep waiting for it."""
        if probed or not self.lasts:
            self._failures += 1
        if not self._given_up:
            self._over.clear()
        self.left(probed)
        return self._failures <= self._most

    def left(self, probed: bool) -> None:
        """A call has ended, or was cancelled or never begun."""
        if probed:
            self._probe.release()


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
