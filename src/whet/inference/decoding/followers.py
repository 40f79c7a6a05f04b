"""Followers of a row, token by token: stop strings, and callers that receive an answer while it is sampled.

Rows without followers cost nothing here: their tokens stay in tensors until they are done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from whet.inference.decoding.sampling import SampledTokens
from whet.inference.decoding.scheduler import SampleJob
from whet.inference.protocol import OnTokens, Sample, VersionRun
from whet.inference.stops import StopWatcher
from whet.inference.token_sets import TokenSets

OnDrawn = Callable[[Sample], None]
"""As `OnTokens`, but receives all that is known of the tokens: they are a sample, which ends in the middle of one."""


class Followers:
    def __init__(self) -> None:
        self._watchers: dict[SampleJob, StopWatcher] = {}
        self._listeners: dict[SampleJob, OnDrawn] = {}

    def __len__(self) -> int:
        return len(self._watchers.keys() | self._listeners.keys())

    def watch(self, job: SampleJob, watcher: StopWatcher) -> None:
        """`job` is running, and ends where `watcher` finds a stop string."""
        self._watchers[job] = watcher

    def listen(self, job: SampleJob, on_tokens: OnTokens | None, on_drawn: OnDrawn | None) -> None:
        """These receive the tokens of `job`, which may still be waiting."""
        if on_drawn is not None:
            self._listeners[job] = on_drawn
        elif on_tokens is not None:
            self._listeners[job] = lambda part: on_tokens(part.ids)

    def forget(self, job: SampleJob) -> None:
        self._watchers.pop(job, None)
        self._listeners.pop(job, None)

    def stopped(self, job: SampleJob) -> bool:
        """Whether a stop string ended it."""
        return job in self._watchers and self._watchers[job].stopped

    def push(self, drawn: SampledTokens) -> set[int]:
        """One token more of every row. The slots of those that a stop string ends."""
        if not self._watchers and not self._listeners:
            return set()
        tokens, done = drawn.tokens_B.tolist(), set[int]()
        for slot, job in self._running(self._watchers):
            try:
                if self._watchers[job].push(tokens[slot]):
                    done.add(slot)
            except Exception as error:
                self._fail(job, error)
        if self._listeners:
            logprobs = drawn.logprobs_B.tolist()
            masses = None if drawn.mass_B is None else drawn.mass_B.tolist()
            for slot, job in self._running(self._listeners):
                part = Sample([tokens[slot]], [logprobs[slot]], [VersionRun(job.marks[-1][0], 1)], "length")
                if job.request.params.cuts and masses is not None:
                    part.kept_mass = [masses[slot]]
                    part.kept = TokenSets.of(job.kept[-1:]) if job.kept else None
                try:
                    self._listeners[job](part)
                except Exception as error:
                    self._fail(job, error)
        return done

    def _fail(self, job: SampleJob, error: Exception) -> None:
        """An error of a follower fails its row alone: the row's caller receives it, and cancels the row."""
        self.forget(job)
        if not job.waiter.done():
            job.waiter.set_exception(error)

    @staticmethod
    def _running(followed: Mapping[SampleJob, Any]) -> list[tuple[int, SampleJob]]:
        return [(job.slot, job) for job in followed if job.slot is not None]
