"""Where the learner leaves new weights for an engine on the same host: a private directory in shared memory.

The directory carries the process id, so that what a killed run left behind is swept up by the next run.

`Publications`: where a learner publishes that may be started again: a directory of its own for each start.

Versions begin again with a start, and engines still have files of these names mapped, which nothing may write over.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from whet.system.children import began

IN_MEMORY = Path("/dev/shm")
_NAME = re.compile(r"whet-weights-(\d+)-")


@contextmanager
def weights_directory() -> Iterator[Path]:
    """A private directory, in shared memory where the host has it, gone when the block ends."""
    root = shared_memory()
    sweep(root)
    path = Path(tempfile.mkdtemp(prefix=f"whet-weights-{os.getpid()}-", dir=root))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def shared_memory() -> Path:
    there = IN_MEMORY.is_dir() and os.access(IN_MEMORY, os.W_OK)
    return IN_MEMORY if there else Path(tempfile.gettempdir())


def sweep(root: Path) -> list[Path]:
    """Remove this user's directories whose process is gone; returns them."""
    removed = []
    for path in root.glob("whet-weights-*"):
        match = _NAME.match(path.name)
        try:
            ours = path.stat().st_uid == os.getuid()
        except FileNotFoundError:  # its run has ended in this moment
            continue
        if match and ours and began(int(match.group(1))) is None:
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


@dataclass(slots=True)
class Publications:
    """The directories below `root`, which is private to the run."""

    root: Path
    _starts: int = 0
    _published: int = 0  # by the present start
    _outdated: list[Path] = field(default_factory=list)

    def begin(self) -> Path:
        """The directory of a start, which is new and empty."""
        if self._starts:
            self._outdated.append(self._directory)
        self._starts, self._published = self._starts + 1, 0
        self._directory.mkdir(parents=True)
        return self._directory

    def published(self) -> None:
        """Called with each publication. At the second of a start engines have taken the first, so older ones can go."""
        self._published += 1
        if self._published > 1:
            for directory in self._outdated:
                shutil.rmtree(directory, ignore_errors=True)
            self._outdated = []

    @property
    def _directory(self) -> Path:
        return self.root / f"published-{self._starts}"
