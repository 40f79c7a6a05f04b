"""Answers in memory on their way from the thread that has them to the client that waits.

The database has every answer that the log names; what is here spares reading it there. What is not here is read there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

KEPT_BYTES = 64 << 20
"""Of answers; the oldest are forgotten."""
AWAITED = 100_000
"""Requests that are known to wait; the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The bytes of an answer, JSON or protobuf."""

    owner: str
    body: bytes
    protobuf: bool


class AnswerBox:
    """See above. Its methods are for any thread."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = defaultdict(list)
        self._awaited: OrderedDict[str, str] = OrderedDict()  # requests without an answer, and their owners
        self._kept: OrderedDict[str, Answer] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def expected(self, request: str) -> Iterator[asyncio.Event]:
        """An event that is set if the answer comes while the block runs."""
        waiting = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._waiting[request].append(waiting)
        try:
            yield waiting[1]
        finally:
            with self._lock:
                self._waiting[request].remove(waiting)
                if not self._waiting[request]:
                    del self._waiting[request]

    def awaited(self, request: str, owner: str) -> None:
        """The request is about to be in the log: until it is `ready` it has no answer."""
        with self._lock:
            self._awaited[request] = owner
            if len(self._awaited) > AWAITED:
                self._awaited.popitem(last=False)

    def forget(self, request: str) -> None:
        """Only the database knows whether the request has an answer."""
        with self._lock:
            self._awaited.pop(request, None)

    def answer(self, request: str, owner: str) -> Answer | None:
        """The owner's answer. None: there is none yet. Raises `KeyError` where only the database knows."""
        with self._lock:
            if self._awaited.get(request) == owner:
                return None
            answer = self._kept[request]
            if answer.owner != owner:
                raise KeyError(request)
            return answer

    def ready(self, requests: Iterable[str], answers: Mapping[str, Answer] | None = None) -> None:
        """These have an answer, which is where they belong: in the database, say."""
        with self._lock:
            for request in requests:
                self._awaited.pop(request, None)
                if answers is not None:
                    before = self._kept.pop(request, None)
                    self._kept[request] = answers[request]
                    self._size += len(answers[request].body) - (0 if before is None else len(before.body))
                for loop, event in self._waiting.get(request, ()):
                    with contextlib.suppress(RuntimeError):  # the loop has ended, and its client with it
                        loop.call_soon_threadsafe(event.set)
            while self._size > KEPT_BYTES:
                self._size -= len(self._kept.popitem(last=False)[1].body)
