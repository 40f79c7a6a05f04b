"""Where a learner publishes that may be started again: a directory of its own for each start.

Versions begin again with a start, and engines still have files of these names mapped, which nothing may write over.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path


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
