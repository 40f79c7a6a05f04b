"""The parts that every request needs, and the limits."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
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
    tokens: int = 200
    keys: int = 100  # secrets, and as many variables, of an environment
    push_s: float = 24 * 3600.0


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
    new_action: threading.Event = field(default_factory=threading.Event)
