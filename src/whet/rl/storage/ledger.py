"""Which group was trained in which step: an append-only file that makes "exactly once" checkable.

One JSON line a step, `{"step": 3, "groups": ["3-0", "3-1"]}`, fsynced before the next step begins. A line that a crash
left half written is cut off when the file is opened; resuming from an older checkpoint cuts off the steps after it. A
group that would be recorded twice is a `RunError`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from whet.errors import RunError, TrainingError
from whet.system.files import LineFile, json_line, write_whole


class Ledger:
    """The ledger at `path`, which is made when there is none."""

    def __init__(self, path: Path) -> None:
        """Read and repair. Raises `RunError` for a damaged line that is not the last, which no crash can explain."""
        self.path = path
        self._file = LineFile(path)
        self._step_of: dict[str, int] = {}  # by group
        self._trained = set[int]()  # steps
        if path.exists():
            self._load()

    @property
    def steps(self) -> dict[int, list[str]]:
        """Groups by step, in the order in which they were trained; read from the file."""
        return dict(self._records()) if self.path.exists() else {}

    def step_of(self, group: str) -> int | None:
        return self._step_of.get(group)

    def append(self, step: int, groups: Iterable[str]) -> None:
        """Record a step; it is on disk when this returns. Raises `TrainingError` when the disk does not take it."""
        trained = list(groups)
        self._admit(step, trained)
        try:
            self._file.append([{"step": step, "groups": trained}])
        except OSError as error:
            self._forget(step, trained)
            raise TrainingError(f"{self.path}: cannot record step {step}: {error.strerror}. Make room.") from None

    def truncate_after(self, step: int) -> None:
        """Forget every later step: the run resumes from a checkpoint of `step`."""
        steps = self.steps
        for later in [number for number in steps if number > step]:
            self._forget(later, steps.pop(later))
        self._rewrite(steps)

    def restore(self, step: int, groups: Iterable[str]) -> None:
        """Put back a step whose line was lost. Raises `RunError` where one of its groups is in another step."""
        trained = list(groups)
        self._admit(step, trained)
        self._rewrite({**self.steps, step: trained})

    def _rewrite(self, steps: Mapping[int, list[str]]) -> None:
        rows = ({"step": step, "groups": groups} for step, groups in sorted(steps.items()))
        write_whole(self.path, "".join(map(json_line, rows)))

    def _load(self) -> None:
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    self._admit(*_record(line))
                except (ValueError, KeyError, TypeError) as error:
                    raise RunError(
                        f"{self.path}, line {number} is damaged ({error}). A crash tears only the last line, so "
                        "something else wrote here: restore the file, or start a new run from the newest checkpoint."
                    ) from None

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        with self.path.open("rb") as file:
            yield from map(_record, file)

    def _admit(self, step: int, groups: list[str]) -> None:
        if step in self._trained:
            raise RunError(f"{self.path}: step {step} is there already; a step is trained once.")
        twice = [group for group in groups if group in self._step_of]
        if twice or len(set(groups)) < len(groups):
            known = f" (group {twice[0]} was trained in step {self.step_of(twice[0])})" if twice else ""
            raise RunError(f"{self.path}: step {step} would train a group twice{known}.")
        self._trained.add(step)
        self._step_of.update(dict.fromkeys(groups, step))

    def _forget(self, step: int, groups: list[str]) -> None:
        self._trained.discard(step)
        for group in groups:
            self._step_of.pop(group, None)


def _record(line: bytes) -> tuple[int, list[str]]:
    """Raises `ValueError`, `KeyError` or `TypeError` for what is no line of a ledger."""
    record = json.loads(line)
    return int(record["step"]), [str(group) for group in record["groups"]]
