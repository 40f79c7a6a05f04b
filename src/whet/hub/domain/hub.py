"""The parts that every request needs, and the limits."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path

from whet.hub.domain.cipher import Cipher
from whet.hub.storage.database import Database
from whet.hub.storage.store import FileStore

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class HubLimits:
    """What one user or owner may take."""

    file_bytes: int = 50 * MIB
    chunk_bytes: int = 8 * MIB
    owner_bytes: int = 5 * 1024 * MIB
    open_pushes: int = 20
    keys: int = 100  # secrets, and as many variables, of an environment
    push_s: float = 24 * 3600.0


class Attempts:
    """How often something was tried within a time, by key; in memory, for the one server of a database."""

    def __init__(self, window_s: float = 600.0, most_keys: int = 10_000) -> None:
        self._window_s, self._most_keys = window_s, most_keys
        self._times: OrderedDict[Hashable, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def count(self, key: Hashable, now: float) -> int:
        """The attempts of a key within the time before `now`, in seconds."""
        with self._lock:
            return sum(at > now - self._window_s for at in self._times.get(key, ()))

    def add(self, key: Hashable, now: float) -> None:
        """One more attempt of a key. The keys that were unused for the longest are forgotten."""
        with self._lock:
            self._times.setdefault(key, deque(maxlen=1000)).append(now)
            self._times.move_to_end(key)
            while len(self._times) > self._most_keys:
                self._times.popitem(last=False)


@dataclass
class Hub:
    """One server's database, store and configuration."""

    database: Database
    store: FileStore
    cipher: Cipher
    uploads: Path
    upstream: str
    limits: HubLimits = field(default_factory=HubLimits)
    clock: Callable[[], float] = time.time
    store_lock: threading.Lock = field(default_factory=threading.Lock)  # a file is added or removed with its row
    push_locks: defaultdict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))
    attempts: Attempts = field(default_factory=Attempts)
    new_action: threading.Event = field(default_factory=threading.Event)
