"""Append rows to `results.jsonl`: the event loop queues them, a thread writes and fsyncs them.

    append ──▶ pending ──64 rows, `seconds`, or a flush──▶ written ──`synced_s`, or a flush──▶ fsynced: saved

The event loop never waits for the disk; a row counts as `saved` once it would survive a power loss. The caller gets the
offset of each row, so that the file can be sorted at the end without holding it in memory. What is written survives a
kill of the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import IO, Any, BinaryIO

from whet.errors import RunError
from whet.parsing import parse_json
from whet.records.directory import RESULTS
from whet.rollouts.results import ANOTHER_PATH, row_key, row_line, what_is_kept
from whet.system.files import cut_torn_line, exact_json_line, json_line, sync, write_whole
from whet.system.redaction import KNOWN
from whet.types import RolloutOutput

ROWS_AT_ONCE = 64
SECONDS_AT_MOST = 0.5  # between a row and its fsync
RESUME = "Make room or repair the disk, then continue with --resume."


class RowLog:
    """Rows that are appended to one file. A torn last line, left by a kill, is cut off when it is opened."""

    def __init__(
        self, directory: Path, *, seconds: float = SECONDS_AT_MOST, synced_s: float = 0.0, hint: str = RESUME
    ) -> None:
        """Open `directory`'s results. Raises `RunError`, which ends in `hint`, where they cannot be written.

        A row waits at most so many `seconds` for others that are written together with it, and then at most `synced_s`
        for others that are fsynced together with it.
        """
        self.path = directory / RESULTS
        self._seconds, self._synced_s, self._hint = seconds, synced_s, hint
        self.saved = 0  # rows that were appended here and are on the disk
        try:
            directory.mkdir(parents=True, exist_ok=True)
            cut_torn_line(self.path)
            self._file: IO[bytes] = open(self.path, "ab", buffering=0)  # noqa: SIM115  closed by close()
            sync(directory)
        except OSError as error:
            raise self._cannot_write(error) from error
        self._end = self._file.seek(0, os.SEEK_END)
        self._changed = threading.Condition()
        self._pending: list[bytes] = []
        self._pending_rows = 0
        self._appended = 0
        self._in_a_hurry = self._closing = False
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._write_all, name=f"whet rows of {directory.name}", daemon=True)
        self._thread.start()

    def append(self, lines: Iterable[bytes]) -> list[int]:
        """Hand over whole rows, which are written together; where each of them begins in the file.

        Raises `RunError` where rows before could not be written.
        """
        offsets = []
        with self._changed:
            self._check()
            for line in lines:
                offsets.append(self._end)
                self._end += len(line)
                self._pending.append(line)
            self._appended += len(offsets)
            first = self._pending_rows == 0
            self._pending_rows += len(offsets)
            if first or self._pending_rows >= ROWS_AT_ONCE:
                self._changed.notify_all()
        return offsets

    def flush(self) -> None:
        """Wait until every row is saved. Raises `RunError` where that cannot be."""
        with self._changed:
            self._in_a_hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._failure is not None or self.saved == self._appended)
            self._check()

    def sort(self, offsets: Sequence[int]) -> None:
        """Keep the rows that begin at `offsets`, in that order, once all are saved. Nothing is appended after it."""
        self.flush()
        try:
            put_in_order(self.path, offsets)
        except OSError as error:
            raise RunError(
                f"{self.path}: all rows are saved, but cannot be put in order ({error.strerror or error}). {self._hint}"
            ) from error

    def close(self) -> None:
        """Save what is pending and close the file; the caller of `flush` has already received a failure."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._file.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._cannot_write(self._failure) from self._failure

    def _cannot_write(self, error: OSError) -> RunError:
        return RunError(
            f"{self.path}: cannot write results ({error.strerror or error}); {what_is_kept(self.path)}. {self._hint}"
        )

    def _write_all(self) -> None:
        unsaved, save_at = 0, 0.0  # rows that are written; when they are to be fsynced
        saved_end = self._file.tell()
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._pending or self._in_a_hurry or self._closing,
                    save_at - monotonic() if unsaved else None,
                )
                if self._pending:
                    self._changed.wait_for(
                        lambda: self._pending_rows >= ROWS_AT_ONCE or self._in_a_hurry or self._closing, self._seconds
                    )
                lines, rows, at_once = self._pending, self._pending_rows, self._in_a_hurry or self._closing
                self._pending, self._pending_rows, self._in_a_hurry = [], 0, False
                if self._closing and not lines and not unsaved:
                    return
            if not unsaved:
                save_at = monotonic() + self._synced_s
            unsaved += rows
            whole = self._file.tell()
            try:
                self._write(b"".join(lines))
                if not unsaved or not (at_once or monotonic() >= save_at):
                    continue
                whole = saved_end
                os.fsync(self._file.fileno())
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file.fileno(), whole)
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                return
            saved_end = self._file.tell()
            with self._changed:
                self.saved += unsaved
                self._changed.notify_all()
            unsaved = 0

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]


def append_rows(directory: Path, rows: Iterable[RolloutOutput]) -> None:
    """Append these rows to `directory`'s results, and return once they are saved."""
    log = RowLog(directory, hint=ANOTHER_PATH)
    try:
        log.append(row_line(row).encode() for row in rows)
        log.flush()
    finally:
        log.close()


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """A file of these rows, whole or absent."""
    write_whole(path, rows_text(rows))
    return path


def rows_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as they are written, a line each, without known secrets."""
    return "".join(map(_line, rows))


def _line(row: Mapping[str, Any]) -> str:
    """A row without secrets. Where one is in its messages it is in its tokens too, and these are left out.

    Numbers of tokens are most of a row; they are not searched.
    """
    if not isinstance(turns := row.get("turns"), list):
        return json_line(row)
    line = exact_json_line({name: value for name, value in row.items() if name != "turns"})
    if KNOWN.in_json(line):
        exact = json.loads(line)
        clean = KNOWN.data(exact)
        line = exact_json_line(clean)
        if any(clean.get(name) != exact.get(name) for name in ("prompt", "completion")):
            turns = [None] * len(turns)
    return f'{line[:-2]}, "turns": {exact_json_line(turns)[:-1]}}}\n'


def read_rows(path: Path) -> Iterator[tuple[int, bytes]]:
    """Where each whole line begins, and the line; blank ones and a torn last one are left out."""
    offset = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n") and not line.isspace():
                yield offset, line
            offset += len(line)


def load_rows(directory: Path) -> list[tuple[int, RolloutOutput]]:
    """The rows of a results directory, each with its offset, without those that a later one replaces.

    Raises `RunError` for a line that is not JSON.
    """
    rows: dict[Any, tuple[int, RolloutOutput]] = {}
    path = directory / RESULTS
    for offset, line in read_rows(path) if path.exists() else ():
        try:
            row = RolloutOutput(parse_json(line))
        except ValueError as error:
            raise RunError(
                f"{path}: the line at byte {offset} is not JSON ({error}). Repair or remove that line."
            ) from error
        rows[row_key(row) or offset] = offset, row
    return list(rows.values())


def load_outputs(directory: Path) -> list[RolloutOutput]:
    """The rows of a results directory, as `load_rows` has them."""
    return [row for _, row in load_rows(directory)]


def row_at(file: BinaryIO, offset: int) -> bytes:
    file.seek(offset)
    return file.readline()


def put_in_order(path: Path, offsets: Sequence[int]) -> None:
    """Rewrite `path` as the lines that begin at `offsets`, in their order; whole or not at all.

    Nothing is written where the file is sorted already. Never holds more than a line in memory.
    """
    if _in_order(path, offsets):
        return
    aside = path.with_name(f".{path.name}.tmp")
    try:
        with path.open("rb") as source, aside.open("wb") as target:
            for offset in offsets:
                target.write(row_at(source, offset))
            target.flush()
            os.fsync(target.fileno())
        os.replace(aside, path)
        sync(path.parent)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def _in_order(path: Path, offsets: Sequence[int]) -> bool:
    end = 0
    with path.open("rb") as file:
        for offset in offsets:
            if offset != end:
                return False
            end = offset + len(row_at(file, offset))
    return end == path.stat().st_size
