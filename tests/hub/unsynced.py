"""SQLite in tests does not wait for the disk: what a killed process has written stays, as in `tests/conftest.py`."""

from __future__ import annotations

import sqlite3
from typing import Any

from sqlalchemy import event
from sqlalchemy.pool import Pool


@event.listens_for(Pool, "checkout")
def unsynced(connection: Any, *_: Any) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")
