"""Where rollouts lie: the one file of an evaluation, or the files that a run writes, one a step and one an evaluation.

results.jsonl                                                           part ""
rollouts/eval_before.jsonl, step_000001.jsonl, eval_step_000050.jsonl   part "eval_before", step 0; ...
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

SUFFIX = ".jsonl"
_NUMBERED = re.compile(r"(eval_)?step_(\d+)")


class Part(NamedTuple):
    """A file of rollouts, as it is now."""

    name: str  # "" where there is only one
    step: int | None
    size: int
    modified: int  # nanoseconds
    inode: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A file of rollouts, or a directory of such files."""

    path: Path

    def parts(self) -> dict[str, Part]:
        """The files there are, by name, in the order in which they were written. A missing one is left out."""
        try:
            if not self.path.is_dir():
                return {"": part_of("", self.path.stat(), step_of(self.path.stem))}
            with os.scandir(self.path) as entries:
                files = [
                    (entry.name.removesuffix(SUFFIX), entry.stat())
                    for entry in entries
                    if entry.name.endswith(SUFFIX) and not entry.name.startswith(".") and entry.is_file()
                ]
        except FileNotFoundError:
            return {}
        files.sort(key=lambda file: order_of(file[0]))
        return {name: part_of(name, stat, step_of(name)) for name, stat in files}

    def file(self, part: str) -> Path:
        return self.path if part == "" else self.path / f"{part}{SUFFIX}"


def part_of(name: str, stat: os.stat_result, step: int | None) -> Part:
    """A file as `stat` finds it."""
    # Some file systems number with 64 bits, SQLite with 63.
    return Part(name, step, stat.st_size, stat.st_mtime_ns, stat.st_ino & (2**63 - 1))


@lru_cache(maxsize=1 << 16)  # a run is looked at several times a second
def step_of(part: str) -> int | None:
    """The step after which a file of a run was written; None where its name does not say."""
    if part == "eval_before":
        return 0
    numbered = _NUMBERED.fullmatch(part)
    return int(numbered[2]) if numbered else None


@lru_cache(maxsize=1 << 16)
def order_of(part: str) -> tuple[float, bool, str]:
    """Sorts the files of a run: by step, what was trained before what was evaluated then."""
    step = step_of(part)
    return (float("inf") if step is None else step, part.startswith("eval"), part)
