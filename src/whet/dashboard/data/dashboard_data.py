"""The data of a library's runs, with what is kept between requests.

One thread reads each watched run once, whatever the number of viewers. A subscriber that does not take its events is
dropped; its browser comes back with the id of the last event that it saw, and `feeds.missed` reads what was written
since.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from whet.dashboard.data.checkpoints import CheckpointChecks, checkpoints
from whet.dashboard.data.facts import Findings
from whet.dashboard.data.feeds import ListFeed, RunFeed, Subscriber, event
from whet.dashboard.data.machine import ProcessUse
from whet.dashboard.data.series import SeriesColumns
from whet.dashboard.data.stores import Stores
from whet.dashboard.data.tokens import Tokenizers
from whet.dashboard.errors import DashboardError
from whet.dashboard.library import LibraryRun, RunLibrary
from whet.errors import WhetError

LOOK_SECONDS = 0.2
"""Between two looks at the files of watched runs."""
FINDING_SECONDS = 10.0
"""Least time between two examinations of a run."""
MOST_SUBSCRIBERS = 1_000
UNREADABLE = (WhetError, OSError, ValueError)
"""What a look at a run may raise; it may be readable at the next."""


class DashboardData:
    """One for each library and process; used by all threads."""

    def __init__(self, library: RunLibrary) -> None:
        self.library = library
        self.series = SeriesColumns()
        self.stores = Stores()
        self.tokenizers = Tokenizers()
        self.checks = CheckpointChecks()
        self.use = ProcessUse()
        self.watcher = Watcher(self)
        self._findings = Findings()

    def findings(self, run: LibraryRun, patience: float | None = None) -> list[dict[str, object]] | None:
        """What the doctor says, the most urgent first; None where it has not ended in `patience` seconds."""
        return self._findings.of(run, lambda: self._faults(run), patience)

    def _faults(self, run: LibraryRun) -> list[str]:
        """Of the newest checkpoint; what is not hashed yet counts as whole."""
        if run.kind not in ("training", "sft"):
            return []
        return [f"step_{one['step']}: {one['fault']}" for one in checkpoints(self.checks, run)[-1:] if one["fault"]]

    def close(self) -> None:
        """Stop what runs in the background."""
        self.watcher.close()
        self.stores.close()
        self.checks.close()


class Watcher:
    """The thread that looks at runs while anything is subscribed to."""

    def __init__(self, data: DashboardData) -> None:
        self._data = data
        self._lock = threading.Lock()
        self._runs: dict[str, RunFeed] = {}
        self._list = ListFeed()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._doctor = ThreadPoolExecutor(1, thread_name_prefix="whet-findings")
        self._closed = False

    def follow(self, run: LibraryRun, subscriber: Subscriber) -> RunFeed:
        """Send what is new in a run to a subscriber, from now on. Raises `DashboardError` where too many follow."""
        with self._lock:
            self._check()
            feed = self._runs.get(run.id)
            if feed is None:
                feed = RunFeed(run.id)
                with feed.lock:
                    feed.begin(run)
                self._runs[run.id] = feed
            feed.subscribers.add(subscriber)
            self._start()
            return feed

    def follow_list(self, subscriber: Subscriber) -> None:
        """Send which runs changed to a subscriber."""
        with self._lock:
            self._check()
            self._list.subscribers.add(subscriber)
            self._start()

    def leave(self, subscriber: Subscriber) -> None:
        """Send nothing more to a subscriber."""
        with self._lock:
            self._list.subscribers.discard(subscriber)
            for id, feed in list(self._runs.items()):
                feed.subscribers.discard(subscriber)
                if not feed.subscribers:
                    del self._runs[id]

    @property
    def subscribers(self) -> int:
        """How many streams there are."""
        return len(self._list.subscribers) + sum(len(feed.subscribers) for feed in self._runs.values())

    def _check(self) -> None:
        if self._closed or self.subscribers >= MOST_SUBSCRIBERS:
            raise DashboardError("busy", "too many pages follow runs now. This one asks again by itself.")

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="whet-dashboard-watch", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        while True:
            with self._lock:
                feeds, listed = list(self._runs.values()), bool(self._list.subscribers)
                if self._closed or not (feeds or listed):
                    self._thread = None
                    return
            began = time.monotonic()
            for feed in feeds:
                with suppress(*UNREADABLE):
                    self._look(feed, began)
            if listed:
                with suppress(*UNREADABLE):
                    self._list.look(self._data, began)
            self._wake.wait(LOOK_SECONDS)

    def _look(self, feed: RunFeed, now: float) -> None:
        with feed.lock:
            events = feed.look(self._data, now)
            feed.publish(events)
        stepped = any(one.startswith(b"id: ") for one in events)
        if stepped and now - feed.examined >= FINDING_SECONDS and feed.run is not None:
            feed.examined = now
            self._doctor.submit(self._examine, feed, feed.run)

    def _examine(self, feed: RunFeed, run: LibraryRun) -> None:
        findings = feed.findings
        with suppress(*UNREADABLE):
            findings = self._data.findings(run)
        if findings != feed.findings:
            feed.findings = findings
            with feed.lock:
                feed.publish([event("finding", {"run": run.id, "items": findings}, feed.position)])

    def close(self) -> None:
        """End all streams."""
        with self._lock:
            self._closed = True
            subscribers = [one for feed in self._runs.values() for one in feed.subscribers]
            subscribers += self._list.subscribers
        for subscriber in subscribers:
            subscriber.offer(None)
        self._wake.set()
        self._doctor.shutdown(wait=False, cancel_futures=True)
