"""The index of a store on disk: columns of numbers in chunks, in an SQLite file that survives a kill at any moment.

    files     one row a file: how far it is indexed, and what it looked like then
    chunks    one row a chunk of consecutive lines, in the order of the rollouts' numbers
    columns   name, chunk -> the numbers of a column as the bytes of an `array`
    texts     chunk -> [[example_id, question, problem], ...] as JSON
    names     number -> environment, class of error, stop condition, candidate, sampling

Chunks rather than rows, because a list of 200,000 rollouts is sorted and filtered by whole columns, and a column is
read in a millisecond this way. SQLite gives what is hard to get right: a chunk is stored completely or not at all,
several processes may read and write, and damage is detected. The index is a copy of what the files say: one that is
damaged, of another version or made from other files is discarded.

The file of an index is next to its rollouts, or in the user's cache where that directory cannot be written.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from whet.viewer.entries import NUMBERS
from whet.viewer.files import Mark

APPLICATION = 0x77686574  # "whet": files with this id may be discarded
VERSION = 3
SUFFIX = ".index"
BUSY_SECONDS = 30.0
_TABLES = """
CREATE TABLE stamp (generation INTEGER, changes INTEGER);
CREATE TABLE files (id INTEGER PRIMARY KEY, part TEXT UNIQUE, step INTEGER, position INTEGER, newlines INTEGER,
    ended INTEGER, size INTEGER, modified INTEGER, inode INTEGER, fingerprint TEXT);
CREATE TABLE chunks (id INTEGER PRIMARY KEY AUTOINCREMENT, count INTEGER, damaged INTEGER);
CREATE TABLE columns (name TEXT, chunk INTEGER, data BLOB, PRIMARY KEY (name, chunk));
CREATE TABLE texts (chunk INTEGER PRIMARY KEY, data TEXT);
CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
INSERT INTO stamp VALUES (0, 0);
"""


class Stamp(NamedTuple):
    """What an index holds, in two numbers."""

    generation: int  # grows when all entries are removed
    changes: int


class FileState(NamedTuple):
    """A file as the index knows it."""

    part: str  # "" for the one file of an evaluation, else its name without the suffix
    step: int | None
    mark: Mark = Mark()  # how far it is indexed
    size: int = 0
    modified: int = 0  # nanoseconds
    inode: int = 0
    fingerprint: str = ""  # of what is indexed


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of the index, ready to be stored: names as text, everything else as numbers."""

    columns: Mapping[str, array[Any]]
    names: Mapping[str, Sequence[str]]
    texts: Sequence[tuple[int | str | None, str, str]]
    damaged: int


class Index:
    """The index at a path, made when there is none; `None`: in memory. One thread at a time."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._names: dict[str, int] = {}
        self._open()

    def _open(self) -> None:
        """Raises `sqlite3.OperationalError` where there can be no index, `NotOursError` where something else is."""
        self._connection = _connect(self.path)
        try:
            ours, tables = self._pragma("application_id") == APPLICATION, self._pragma("schema_version") > 0
            if tables and not ours:
                raise NotOursError(str(self.path))
            if tables and self._pragma("user_version") != _version():
                self.replace()
            elif not tables:
                self._create()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) or self.path is None:
                raise
            if not _made_by_sqlite(self.path):
                raise NotOursError(str(self.path)) from None
            self.replace()

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    def _create(self) -> None:
        with self.writing():
            if self._pragma("schema_version") == 0:  # else another process has created them
                for statement in _TABLES.split(";\n"):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA application_id = {APPLICATION}")
                self._connection.execute(f"PRAGMA user_version = {_version()}")

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

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All reads inside see one state, also while another process writes."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction: all or nothing, one writer at a time."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            self._names.clear()
            raise
        self._connection.execute("COMMIT")

    def stamp(self) -> Stamp:
        """Another one after every change."""
        return Stamp(*self._connection.execute("SELECT generation, changes FROM stamp").fetchone())

    def files(self) -> dict[str, tuple[int, FileState]]:
        """By part: the number of the file and its state, in the order in which they were first seen."""
        rows = self._connection.execute("SELECT * FROM files ORDER BY id")
        return {
            row[1]: (row[0], FileState(row[1], row[2], Mark(row[3], row[4], bool(row[5])), *row[6:])) for row in rows
        }

    def counts(self, after: int = 0) -> list[tuple[int, int, int]]:
        """(chunk, rollouts, damaged lines) of the chunks after one, in the order of the rollouts' numbers."""
        query = "SELECT id, count, damaged FROM chunks WHERE id > ? ORDER BY id"
        return self._connection.execute(query, (after,)).fetchall()

    def column(self, name: str, after: int, to: int) -> array[Any]:
        """A column's numbers in the chunks after one, up to another and with it."""
        values = array(NUMBERS[name])
        query = "SELECT data FROM columns WHERE name = ? AND chunk > ? AND chunk <= ? ORDER BY chunk"
        for (data,) in self._connection.execute(query, (name, after, to)):
            values.frombytes(data)
        return values

    def texts(self, chunk: int) -> list[list[Any]]:
        row = self._connection.execute("SELECT data FROM texts WHERE chunk = ?", (chunk,)).fetchone()
        return [] if row is None else list(json.loads(row[0]))

    def names(self) -> dict[int, str]:
        return dict(self._connection.execute("SELECT id, name FROM names"))

    def set_file(self, state: FileState) -> int:
        """Store what a file looks like; returns its number. Inside `writing`."""
        query = "SELECT id FROM files WHERE part = ?"
        row = self._connection.execute(query, (state.part,)).fetchone()
        if row is not None:
            self._connection.execute("DELETE FROM files WHERE id = ?", row)
        self._connection.execute("UPDATE stamp SET changes = changes + 1")
        cursor = self._connection.execute(
            "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (None if row is None else row[0], *state[:2], *state.mark, *state[3:]),
        )
        return int(cursor.lastrowid or 0)

    def add(self, chunk: Chunk) -> None:
        """Append a chunk. Inside `writing`, after `set_file`."""
        cursor = self._connection.execute(
            "INSERT INTO chunks (count, damaged) VALUES (?, ?)", (len(chunk.texts), chunk.damaged)
        )
        number = cursor.lastrowid
        columns = dict(chunk.columns)
        for column, names in chunk.names.items():
            columns[column] = array(NUMBERS[column], [self._name(name) for name in names])
        self._connection.executemany(
            "INSERT INTO columns VALUES (?, ?, ?)", [(name, number, data.tobytes()) for name, data in columns.items()]
        )
        self._connection.execute("INSERT INTO texts VALUES (?, ?)", (number, json.dumps(chunk.texts)))

    def _name(self, name: str) -> int:
        if not name:
            return 0
        if name not in self._names:
            self._connection.execute("INSERT OR IGNORE INTO names (name) VALUES (?)", (name,))
            (number,) = self._connection.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchone()
            self._names[name] = number
        return self._names[name]

    def clear(self) -> None:
        """Remove all entries: numbers returned before are void. Inside `writing`."""
        for table in ("files", "chunks", "columns", "texts"):
            self._connection.execute(f"DELETE FROM {table}")
        self._connection.execute("UPDATE stamp SET generation = generation + 1, changes = changes + 1")


class NotOursError(Exception):
    """The path of the index holds a file that the viewer did not write."""


def _connect(path: Path | None) -> sqlite3.Connection:
    # Autocommit: transactions are begun by hand. The store serialises its threads with a lock.
    return sqlite3.connect(
        ":memory:" if path is None else path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )


def _version() -> int:
    """Of the format; the bytes of an `array` are those of the machine."""
    return VERSION * 2 + (sys.byteorder == "big")


def _made_by_sqlite(path: Path) -> bool:
    """Whether a file that SQLite cannot read was written by it, and for us."""
    with path.open("rb") as file:
        head = file.read(72)
    return head.startswith(b"SQLite format 3\0") and int.from_bytes(head[68:72], "big") == APPLICATION


def open_index(rollouts: Path) -> Index:
    """The index of a file or directory of rollouts, on disk where that can be, else in memory."""
    for path in (index_path(rollouts), cached_index_path(rollouts)):
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
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "whet" / "viewer" / f"{hashlib.sha256(str(rollouts.absolute()).encode()).hexdigest()[:32]}{SUFFIX}"
