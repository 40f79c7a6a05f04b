"""Observers: one that forwards to several, and one that may be called from the search's thread."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from whet.display.live import forwards
from whet.gepa.types import CandidateRecord, SearchObserver


@forwards
class Forwarder(SearchObserver):
    """Passes every event on through one method, `send`."""

    def send(self, event: str, *args: Any) -> None:
        """An event by the name of its method, and what it carries."""
        raise NotImplementedError


class Several(Forwarder):
    """Forwards to all of them in order. All are closed, also where closing one fails."""

    def __init__(self, *observers: SearchObserver) -> None:
        self._observers = observers

    def send(self, event: str, *args: Any) -> None:
        for one in self._observers:
            getattr(one, event)(*args)

    def close(self) -> None:
        failure: Exception | None = None
        for one in self._observers:
            try:
                one.close()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure


class FromThread(Forwarder):
    """Forwards each event to the event loop, in order; a record as it is at that moment."""

    def __init__(self, observer: SearchObserver, loop: asyncio.AbstractEventLoop) -> None:
        self._observer, self._loop = observer, loop

    def send(self, event: str, *args: Any) -> None:
        self._loop.call_soon_threadsafe(getattr(self._observer, event), *args)

    def decided(self, record: CandidateRecord) -> None:
        now = dataclasses.replace(record, minibatch=dict(record.minibatch), val_rewards=dict(record.val_rewards))
        self.send("decided", now)

    def proposed(self, number: int, parent: str, texts: Mapping[str, str], changed: Sequence[str]) -> None:
        self.send("proposed", number, parent, dict(texts), list(changed))
