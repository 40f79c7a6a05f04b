"""Where an index lies: beside what it is an index of, or in the cache of the user where nobody may write there."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from pathlib import Path

from whet.viewer.index import Index, NotOursError

SUFFIX = ".index"


def open_index(rollouts: Path) -> Index:
    """The index of a file or directory of rollouts, on disk where that can be, else in memory."""
    for path in (beside(rollouts), in_cache(rollouts)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if os.access(path.parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK)):
                return Index(path)
        except (NotOursError, sqlite3.OperationalError, OSError):
            continue
    return Index(None)


def beside(rollouts: Path) -> Path:
    """`results.jsonl.index`; `rollouts/.index` for a directory."""
    return rollouts / SUFFIX if rollouts.is_dir() else rollouts.with_name(rollouts.name + SUFFIX)


def in_cache(rollouts: Path) -> Path:
    """A name of its own for every path."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "whet" / "viewer" / f"{hashlib.sha256(str(rollouts.absolute()).encode()).hexdigest()[:32]}{SUFFIX}"
