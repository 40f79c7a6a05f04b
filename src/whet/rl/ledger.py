"""Which group was trained in which step: an append-only file that makes "exactly once" checkable.

One JSON line a step, `{"step": 3, "groups": ["3-0", "3-1"]}`, fsynced before the next step begins. A line that a crash
left half written is cut off when the file is opened; resuming from an older checkpoint cuts off the steps after it. A
group that would be recorded twice is a `RunError`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from whet.errors import RunError, TrainingError
from whet.files import write_whole


class Ledger:
    """The ledger at `path`, which is made when there is none."""

    def __init__(self, path: Path) -> None:
        """Read and repair. Raises `RunError` for a damaged line that is not the last, which no crash can explain."""
        self.path = path
        self._groups: dict[int, list[str]] = {}
        self._step_of_group: dict[str, int] = {}
        self._load()

    @property
    def steps(self) -> dict[int, list[str]]:
        """Groups by step, in the order in which they were trained."""
        return {step: list(groups) for step, groups in self._groups.items()}

    def step_of(self, group: str) -> int | None:
        return self._step_of_group.get(group)

    def append(self, step: int, groups: Iterable[str]) -> None:
        """Record a step; it is on disk when this returns. Raises `TrainingError` when the disk does not take it."""
        trained = list(groups)
        self._admit(step, trained)
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("ab") as file:
                file.write(json.dumps({"step": step, "groups": trained}).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with self.path.open("ab") as file:
                file.truncate(size)
            self._forget(step)
            raise TrainingError(f"{self.path}: cannot record step {step}: {error.strerror}. Make room.") from None

    def truncate_after(self, step: int) -> None:
        """Forget every later step: the run goes on from a checkpoint of `step`."""
        for later in [number for number in self._groups if number > step]:
            self._forget(later)
        self._rewrite()

    def restore(self, step: int, groups: Iterable[str]) -> None:
        """Put back a step whose line was lost. Raises `RunError` where one of its groups is in another step."""
        self._admit(step, list(groups))
        self._rewrite()

    def _rewrite(self) -> None:
        self._groups = dict(sorted(self._groups.items()))
        lines = [json.dumps({"step": step, "groups": groups}) + "\n" for step, groups in self._groups.items()]
        write_whole(self.path, "".join(lines))

    def _load(self) -> None:
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                record = json.loads(line)
                self._admit(int(record["step"]), [str(group) for group in record["groups"]])
            except (ValueError, KeyError, TypeError) as error:
                raise RunError(
                    f"{self.path}, line {number} is damaged ({error}). A crash tears only the last line, so something "
                    "else wrote here: restore the file, or start a new run from the newest checkpoint."
                ) from None
        if whole < len(content):
            os.truncate(self.path, whole)

    def _admit(self, step: int, groups: list[str]) -> None:
        if step in self._groups:
            raise RunError(f"{self.path}: step {step} is there already; a step is trained once.")
        twice = [group for group in groups if group in self._step_of_group]
        if twice or len(set(groups)) < len(groups):
            known = f" (group {twice[0]} was trained in step {self._step_of_group[twice[0]]})" if twice else ""
            raise RunError(f"{self.path}: step {step} would train a group twice{known}.")
        self._groups[step] = groups
        self._step_of_group.update(dict.fromkeys(groups, step))

    def _forget(self, step: int) -> None:
        for group in self._groups.pop(step):
            del self._step_of_group[group]
