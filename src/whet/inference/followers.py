"""Who follows a row token by token: stop strings, and callers that are told of an answer while it is sampled.

Rows that nobody follows cost nothing here: their tokens stay in tensors until they are done.
"""

from __future__ import annotations

from torch import Tensor

from whet.inference.protocol import OnTokens
from whet.inference.scheduler import Job
from whet.inference.stops import StopWatcher


class Followers:
    def __init__(self) -> None:
        self._watchers: dict[Job, StopWatcher] = {}
        self._listeners: dict[Job, OnTokens] = {}

    def __len__(self) -> int:
        return len(self._watchers.keys() | self._listeners.keys())

    def watch(self, job: Job, watcher: StopWatcher) -> None:
        """`job` is running, and ends where `watcher` says so."""
        self._watchers[job] = watcher

    def listen(self, job: Job, on_tokens: OnTokens) -> None:
        """`job`, which may have to wait, is told of to `on_tokens`."""
        self._listeners[job] = on_tokens

    def forget(self, job: Job) -> None:
        self._watchers.pop(job, None)
        self._listeners.pop(job, None)

    def stopped(self, job: Job) -> bool:
        """Whether a stop string ended it."""
        return job in self._watchers and self._watchers[job].stopped

    def push(self, tokens_B: Tensor) -> set[int]:
        """One token more of every row. The slots of those that a stop string ends."""
        done = {slot for slot, job in self._running(self._watchers) if self._watchers[job].push(int(tokens_B[slot]))}
        if self._listeners:
            self._tell(tokens_B.tolist())
        return done

    def _tell(self, tokens: list[int]) -> None:
        """Give each listener the token that its row has just drawn; one that fails ends its own request only."""
        for slot, job in self._running(self._listeners):
            try:
                self._listeners[job]([tokens[slot]])
            except Exception as error:
                del self._listeners[job]
                if not job.waiter.done():
                    job.waiter.set_exception(error)

    @staticmethod
    def _running(followed: dict[Job, StopWatcher] | dict[Job, OnTokens]) -> list[tuple[int, Job]]:
        return [(job.slot, job) for job in followed if job.slot is not None]
