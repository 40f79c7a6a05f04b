"""The index of a store on disk: a row for each rollout, in an SQLite file that survives a kill at any moment.

SQLite gives what is hard to get right: lines and how far their file is indexed are stored together or not at all,
several processes may read and write, and damage is detected. The index is a copy of what the files say: one that is
damaged, of another version or made from other files is discarded.

The file of an index is next to its rollouts, or in the user's cache where that directory cannot be written.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from whet.records.files import Mark
from whet.system.files import user_cache

APPLICATION = 0x77686574  # "whet": files with this id may be discarded
VERSION = 10
SUFFIX = ".index"
BUSY_SECONDS = 30.0
_TABLES = """
CREATE TABLE stamp (generation INTEGER, changes INTEGER, rollouts INTEGER, damaged INTEGER);
CREATE TABLE files (id INTEGER PRIMARY KEY, part TEXT UNIQUE, step INTEGER, position INTEGER, newlines INTEGER,
    ended INTEGER, size INTEGER, modified INTEGER, inode INTEGER, fingerprint TEXT);
CREATE TABLE rollouts (number INTEGER PRIMARY KEY, file INTEGER, line INTEGER, offset INTEGER, size INTEGER,
    checksum INTEGER, group_key INTEGER, environment TEXT, error TEXT, stop_condition TEXT, candidate TEXT,
    sampling TEXT, truncated INTEGER, turns INTEGER, reward REAL, advantage REAL, input_tokens REAL,
    output_tokens REAL, duration REAL, example_id, place INTEGER, question TEXT, problem TEXT);
CREATE TABLE tallies (field TEXT, value TEXT, count INTEGER, first INTEGER, PRIMARY KEY (field, value));
CREATE INDEX groups ON rollouts (group_key);
CREATE INDEX by_file ON rollouts (file);
INSERT INTO stamp VALUES (0, 0, 0, 0);
"""
TALLIED = {"environment": 5, "error": 6, "stop_condition": 7, "candidate": 8, "sampling": 9}
"""Columns whose values are counted as rows are added, and where they are in a row: counting a million takes seconds.
A row without an environment counts as ""."""


class Stamp(NamedTuple):
    """What an index holds, in a few numbers."""

    generation: int  # grows when all entries are removed
    changes: int
    rollouts: int
    damaged: int  # of them: lines that are no rollouts


class FileState(NamedTuple):
    """A file as the index knows it."""

    part: str  # "" for the one file of an evaluation, else its name without the suffix
    step: int | None
    mark: Mark = Mark()  # how far it is indexed
    size: int = 0
    modified: int = 0  # nanoseconds
    inode: int = 0
    fingerprint: str = ""  # of what is indexed


class Index:
    """The index at a path, made when there is none; `None`: in memory. One thread at a time."""

    def __init__(self, path: Path | None) -> None:
        """Raises `sqlite3.OperationalError` where there can be no index, `NotOursError` where something else is."""
        self.path = path
        self._connection = _connect(path)
        try:
            ours, tables = self._pragma("application_id") == APPLICATION, self._pragma("schema_version") > 0
            if tables and not ours:
                raise NotOursError(str(path))
            if not tables:
                self._create()
            elif self._pragma("user_version") != VERSION or not self._is_whole():
                self.replace()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) or path is None:
                raise
            if not _made_by_sqlite(path):
                raise NotOursError(str(path)) from None
            self.replace()

    def _pragma(self, name: str) -> int:
        return int(self.select(f"PRAGMA {name}")[0][0])

    def _is_whole(self) -> bool:
        """Whether the last rollout is there, which a file that was cut has lost."""
        return self.select("SELECT coalesce(max(number) + 1, 0) FROM rollouts") == [(self.stamp().rollouts,)]

    def _create(self) -> None:
        with self.writing():
            if self._pragma("schema_version") == 0:  # else another process has created them
                for statement in _TABLES.split(";\n"):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA application_id = {APPLICATION}")
                self._connection.execute(f"PRAGMA user_version = {VERSION}")

    def replace(self) -> None:
        """Replace a damaged file with an empty index."""
        assert self.path is not None
        self._connection.close()
        for suffix in ("", "-journal"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        self._connection = _connect(self.path)
        self._create()

    def close(self) -> None:
        self._connection.close()

    def select(self, query: str, parameters: Mapping[str, Any] | Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, parameters).fetchall()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction: all or nothing, one writer at a time."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def stamp(self) -> Stamp:
        """Another one after every change."""
        return Stamp(*self.select("SELECT * FROM stamp")[0])

    def files(self) -> dict[str, FileState]:
        """By part, in the order in which they were first seen."""
        rows = self.select("SELECT * FROM files ORDER BY id")
        return {row[1]: FileState(row[1], row[2], Mark(row[3], row[4], bool(row[5])), *row[6:]) for row in rows}

    def add(self, state: FileState, rows: Sequence[tuple[Any, ...]], damaged: int) -> None:
        """Store what a file looks like and what is new in it, from the column `line` on. Inside `writing`."""
        first = self.stamp().rollouts
        file = self._connection.execute(
            "INSERT OR REPLACE INTO files VALUES ((SELECT id FROM files WHERE part = ?), ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (state.part, *state[:2], *state.mark, *state[3:]),
        ).lastrowid
        self._connection.execute(
            "UPDATE stamp SET changes = changes + 1, rollouts = rollouts + ?, damaged = damaged + ?",
            (len(rows), damaged),
        )
        if rows:
            self._connection.executemany(
                f"INSERT INTO rollouts VALUES ({', '.join('?' * (len(rows[0]) + 2))})",
                [(number, file, *row) for number, row in enumerate(rows, start=first)],
            )
            self._connection.executemany(
                "INSERT INTO tallies VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count",
                _tallies(rows, first),
            )

    def clear(self) -> None:
        """Remove all entries: numbers returned before are void. Inside `writing`."""
        for table in ("files", "rollouts", "tallies"):
            self._connection.execute(f"DELETE FROM {table}")
        self._connection.execute(
            "UPDATE stamp SET generation = generation + 1, changes = changes + 1, rollouts = 0, damaged = 0"
        )


def _tallies(rows: Sequence[tuple[Any, ...]], first: int) -> list[tuple[str, str, int, int]]:
    """(column, value, rows that have it, number of the first of them), of the rows that are rollouts."""
    tallies: dict[tuple[str, str], list[int]] = {}
    for number, row in enumerate(rows, start=first):
        if row[-1] is None:
            for name, at in TALLIED.items():
                value = row[at] or ("" if name == "environment" else None)
                if value is not None:
                    tallies.setdefault((name, value), [0, number])[0] += 1
    return [(*key, count, number) for key, (count, number) in tallies.items()]


class NotOursError(Exception):
    """The path of the index holds a file that the viewer did not write."""


def _connect(path: Path | None) -> sqlite3.Connection:
    # Autocommit: transactions are begun by hand. The store serialises its threads with a lock.
    return sqlite3.connect(
        ":memory:" if path is None else path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )


def _made_by_sqlite(path: Path) -> bool:
    """Whether a file that SQLite cannot read was written by it, and for us."""
    with path.open("rb") as file:
        head = file.read(72)
    return head.startswith(b"SQLite format 3\0") and int.from_bytes(head[68:72], "big") == APPLICATION


def open_index(rollouts: Path, *, trusted: bool = True) -> Index:
    """The index of a file or directory of rollouts, on disk where that can be, else in memory.

    One next to rollouts that are not trusted is not: it would be believed where files are.
    """
    for path in ([index_path(rollouts)] if trusted else []) + [cached_index_path(rollouts)]:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if os.access(path.parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK)):
                return Index(path)
        except (NotOursError, sqlite3.OperationalError, OSError):
            continue
    return Index(None)


def index_path(rollouts: Path) -> Path:
    """`results.jsonl.index`; `rollouts/.index` for a directory."""
    return rollouts / SUFFIX if rollouts.is_dir() else rollouts.with_name(rollouts.name + SUFFIX)


def cached_index_path(rollouts: Path) -> Path:
    """In the user's cache, with a different name for every path."""
    return user_cache("viewer") / f"{hashlib.sha256(str(rollouts.absolute()).encode()).hexdigest()[:32]}{SUFFIX}"
