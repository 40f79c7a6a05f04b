"""The files of a run and of its attempts; locks (`records/lock.py`) say what still lives.

    attempts/{n}/attempt.json    who guards the attempt (the shim) and who runs it, written by the shim
    attempts/{n}/exit.json       how it ended, written once, by the process that holds `shim.lock`
    attempts/{n}/output.log      what the run printed, bounded
    attempts/{n}/shim.lock       held by the shim as long as it lives
    attempts/{n}/life.lock       inherited by the run's processes, so held until the last of them is gone

The kernel frees a lock with its last holder, however that ends, so a free `life.lock` is evidence and a silent process
is none. A run's code can write into its folder, and only there: `run/` and `cache/` are its own, the other names belong
to the runner. What it may have written is read by `system/untrusted.py` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.parsing import parse_json


@dataclass(frozen=True, slots=True)
class AttemptFolder:
    """`DATA/runs/{run}/attempts/{n}/`."""

    path: Path

    @property
    def identity(self) -> Path:
        return self.path / "attempt.json"

    @property
    def exit(self) -> Path:
        return self.path / "exit.json"

    @property
    def output(self) -> Path:
        return self.path / "output.log"

    @property
    def pipe(self) -> Path:
        return self.path / "output.pipe"

    @property
    def shim_lock(self) -> Path:
        return self.path / "shim.lock"

    @property
    def life_lock(self) -> Path:
        return self.path / "life.lock"


RUN, SUBMISSION, CACHE = "run", "submission", "cache"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """`DATA/runs/{run}/`."""

    path: Path

    @staticmethod
    def of(data: Path, run: str) -> RunFolder:
        return RunFolder(data / "runs" / run)

    @property
    def submission(self) -> Path:
        return self.path / SUBMISSION

    @property
    def run(self) -> Path:
        return self.path / RUN

    @property
    def cache(self) -> Path:
        """What the run adds to the machine's model caches."""
        return self.path / CACHE

    def attempt(self, number: int) -> AttemptFolder:
        return AttemptFolder(self.path / "attempts" / str(number))


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object that the shim wrote; empty where there is none."""
    try:
        value = parse_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
