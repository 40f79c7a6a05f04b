"""Updates an index from its files, a piece at a time; in this process, or in a separate one.

    whole lines        are indexed once, from where the index ends
    a torn last line   waits until it is complete; an object without a newline at the end of a file counts as complete
    a file that grew   is indexed from there, if its inode and samples of its content are the same
    one that was truncated, replaced or rewritten in place: the whole index is rebuilt

`python -m whet.records.indexing ROLLOUTS INDEX [ROOT]` indexes to the end and exits, also when its standard input ends.
"""

from __future__ import annotations

import hashlib
import os
import select
import sqlite3
import sys
import time
import zlib
from pathlib import Path

from whet.records.entries import IndexEntry, group_key, read_entry
from whet.records.files import FileLine, Mark, RolloutFile, RolloutFiles, next_block, part_of, read_at
from whet.records.index import FileState, Index, Stamp

PIECE = 4 << 20
"""Bytes that a separate process indexes at once."""
SMALL_PIECE = 256 << 10
"""Bytes that are indexed at once in the viewer itself: some milliseconds of work."""
SAMPLES, SAMPLE_BYTES = 8, 4096


class Indexer:
    """Reads the files of `files` into `index`. Several indexers may share an index; each piece is added once."""

    def __init__(self, files: RolloutFiles, index: Index, piece: int = SMALL_PIECE) -> None:
        self.files = files
        self.index = index
        self.piece = piece
        self.parts: dict[str, RolloutFile] = {}
        """The files as of the last `check`."""
        self._states: dict[str, FileState] = {}
        self.stamp: Stamp | None = None
        """Of the index when it was last looked at."""
        self._same: dict[str, tuple[RolloutFile, FileState]] = {}  # compared already
        self._torn: dict[str, RolloutFile] = {}  # files without a further whole line, with their state at that time

    def check(self) -> None:
        """List the files again. If one that is indexed is no longer the same, the index is emptied."""
        self.parts = self.files.parts()
        self.refresh()
        if all(name in self.parts and self._is_same(self.parts[name], state) for name, state in self._states.items()):
            return
        with self.index.writing():
            if self.index.stamp() == self.stamp:  # else another process has cleared it
                self.index.clear()
        self.refresh()

    def refresh(self) -> None:
        """Look at what the index holds now."""
        stamp = self.index.stamp()
        if stamp != self.stamp:
            self._states, self.stamp = self.index.files(), stamp

    def _is_same(self, part: RolloutFile, state: FileState) -> bool:
        """Whether the indexed part of a file is still in it."""
        if self._same.get(part.name) == (part, state):
            return True
        untouched = (part.size, part.modified) == (state.size, state.modified)
        if part.inode != state.inode and not untouched:
            return False
        position, _, ended = state.mark
        if part.size < position or (part.size == position and not untouched):
            return False
        try:
            with self.files.opened(self.files.file(part.name)) as file:
                goes_on = ended or read_at(file, position, 1) in (b"", b"\n")
                same = goes_on and fingerprint(file, position) == state.fingerprint
        except FileNotFoundError:
            return False
        if same:
            self._same[part.name] = (part, state)
        return same

    def index_some(self, seconds: float) -> bool:
        """Index for about so long, at least a piece. Whether something is left that can be indexed now."""
        deadline = time.monotonic() + seconds
        while self._index_piece():
            if time.monotonic() >= deadline:
                return True
        return False

    @property
    def torn(self) -> int:
        """Bytes after the last whole line, of the files that are indexed to there."""
        return sum(part.size - self._position(name) for name, part in self.parts.items() if name in self._torn)

    @property
    def done(self) -> int:
        """Bytes that are indexed."""
        return sum(state.mark.position for state in self._states.values())

    @property
    def left(self) -> int:
        """Bytes that are not indexed yet."""
        return sum(max(0, part.size - self._position(name)) for name, part in self.parts.items())

    def _position(self, part: str) -> int:
        return self._states[part].mark.position if part in self._states else 0

    def _index_piece(self) -> bool:
        """Add the next piece of the first file that has one."""
        self.refresh()
        for name, part in self.parts.items():
            if part.size <= self._position(name):
                continue
            mark = self._states[name].mark if name in self._states else Mark()
            try:
                with self.files.opened(self.files.file(part.name)) as file:
                    now = part_of(name, os.fstat(file), part.step)  # before anything is read of it
                    if now.inode != part.inode or now.size < part.size:
                        continue  # replaced or cut since `check`, which will find out
                    if self._torn.get(name) == now:
                        continue
                    piece = next_block(file, mark, now.size, self.piece)
                    if piece is None:
                        self._torn[name] = now
                        continue
                    sample = fingerprint(file, piece.end.position)
            except FileNotFoundError:
                continue
            state = FileState(name, part.step, piece.end, now.size, now.modified, now.inode, sample)
            self._torn.pop(name, None)
            self._add(state, piece.lines)
            return True
        return False

    def _add(self, state: FileState, lines: list[FileLine]) -> None:
        entries = [_entry(line) for line in lines]
        rows = [
            (line.number, line.offset, line.size, zlib.crc32(line.content or b""), group_key(state.part, group), *rest)
            for line, (group, *rest) in zip(lines, entries, strict=True)
        ]
        with self.index.writing():
            if self.index.stamp() != self.stamp:
                return  # another process wrote meanwhile, perhaps this very piece
            self.index.add(state, rows, damaged=sum(entry.problem is not None for entry in entries))
            stamp = self.index.stamp()
        self._states[state.part] = state
        self.stamp = stamp


def _entry(line: FileLine) -> IndexEntry:
    if line.content is None:
        return IndexEntry(problem=f"a line of {line.size:,} bytes is too long to be read")
    return read_entry(line.content)


def fingerprint(file: int, position: int) -> str:
    """Of samples of the first `position` bytes: the beginning, the end and some between."""
    digest = hashlib.blake2b(digest_size=16)
    last = max(0, position - SAMPLE_BYTES)
    for offset in sorted({last * number // (SAMPLES - 1) for number in range(SAMPLES)}):
        digest.update(read_at(file, offset, min(SAMPLE_BYTES, position - offset)))
    return digest.hexdigest()


def main(arguments: list[str] | None = None) -> int:
    """Index the rollouts at the first path into the index at the second; the third is `RolloutFiles.root`."""
    rollouts, path, *root = sys.argv[1:] if arguments is None else arguments
    os.nice(10)
    try:
        indexer = Indexer(RolloutFiles(Path(rollouts), *map(Path, root)), Index(Path(path)), piece=PIECE)
        more = True
        while more:
            indexer.check()
            more = indexer.index_some(seconds=0.5)
            if select.select([sys.stdin], [], [], 0)[0]:  # the parent process has ended
                return 0
    except (OSError, sqlite3.Error) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
