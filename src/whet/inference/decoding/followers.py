"""Followers of a row, token by token: stop strings, and callers that receive an answer while it is sampled.

Rows without followers cost nothing here: their tokens stay in tensors until they are done.
"""

from __future__ import annotations

from torch import Tensor

from whet.inference.decoding.scheduler import SampleJob
from whet.inference.protocol import OnTokens
from whet.inference.stops import StopWatcher


class Followers:
    def __init__(self) -> None:
        self._watchers: dict[SampleJob, StopWatcher] = {}
        self._listeners: dict[SampleJob, OnTokens] = {}

    def __len__(self) -> int:
        return len(self._watchers.keys() | self._listeners.keys())

    def watch(self, job: SampleJob, watcher: StopWatcher) -> None:
        """`job` is running, and ends where `watcher` finds a stop string."""
        self._watchers[job] = watcher

    def listen(self, job: SampleJob, on_tokens: OnTokens) -> None:
        """`on_tokens` receives the tokens of `job`, which may still be waiting."""
        self._listeners[job] = on_tokens

    def forget(self, job: SampleJob) -> None:
        self._watchers.pop(job, None)
        self._listeners.pop(job, None)

    def stopped(self, job: SampleJob) -> bool:
        """Whether a stop string ended it."""
        return job in self._watchers and self._watchers[job].stopped

    def push(self, tokens_B: Tensor) -> set[int]:
        """One token more of every row. The slots of those that a stop string ends."""
        if not self._watchers and not self._listeners:
            return set()
        tokens, done = tokens_B.tolist(), set[int]()
        for slot, job in self._running(self._watchers):
            try:
                if self._watchers[job].push(tokens[slot]):
                    done.add(slot)
            except Exception as error:
                self._fail(job, error)
        for slot, job in self._running(self._listeners):
            try:
                self._listeners[job]([tokens[slot]])
            except Exception as error:
                self._fail(job, error)
        return done

    def _fail(self, job: SampleJob, error: Exception) -> None:
        """An error of a follower fails its row alone: the row's caller receives it, and cancels the row."""
        self.forget(job)
        if not job.waiter.done():
            job.waiter.set_exception(error)

    @staticmethod
    def _running(followed: dict[SampleJob, StopWatcher] | dict[SampleJob, OnTokens]) -> list[tuple[int, SampleJob]]:
        return [(job.slot, job) for job in followed if job.slot is not None]
