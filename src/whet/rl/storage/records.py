"""What a run writes down as it goes, in the order that makes it safe to kill at any moment.

After a step: rollouts, then metrics, then the ledger. Now and then: a checkpoint. A checkpoint of step N names
everything up to N; whatever was written for later steps by a run that was then killed is cut off by `rewind`.

Archives or removes steps that a resume discards: nothing is deleted because an older step was chosen.

set_aside/after_step_20/          (then after_step_20-2, ...)
    metrics.jsonl, evals.jsonl, ledger.jsonl, errors.jsonl     as they were
    rollouts/step_000021.jsonl, ...
    checkpoints/step_30/, ...

Records that were damaged by something other than a kill: what can be read is kept, and the repair is reported.

A kill tears the last line of a file, and every file is opened without it. Damage elsewhere (a disk, an editor) must not
cost a run whose checkpoint is whole: the lines go to `<file>.damaged`, and the ledger's are made again from the
rollouts of their steps.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from whet.errors import RunError, TrainingError
from whet.records.directory import ERRORS, EVALS, LEDGER, METRICS, free_path
from whet.rl.learner.protocol import Learner
from whet.rl.loop.group import Group, Tally
from whet.rl.monitors.jsonl import JsonlMonitor, read_evaluations
from whet.rl.monitors.protocol import EvalReport, StepReport
from whet.rl.storage.checkpoints import load_checkpoint, newest_checkpoint, save_checkpoint
from whet.rl.storage.run_directory import RunDirectory, step_path, write_evaluation, write_step
from whet.rollouts.token_rows import Turns, rollout_row
from whet.system.files import LineFile, json_line, read_lines, write_whole

# Which group was trained in which step: an append-only file that makes "exactly once" checkable.
#
# One JSON line a step, `{"step": 3, "groups": ["3-0", "3-1"]}`, fsynced before the next step begins. A line that a
# crash left half written is cut off when the file is opened; resuming from an older checkpoint cuts off the steps after
# it. A group that would be recorded twice is a `RunError`.


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


CURRICULUM = "curriculum.json"
KEYS: dict[str, dict[str, type]] = {
    METRICS: {"step": int},
    EVALS: {"step": int, "moment": str, "version": int, "environment": str, "sampling": str, "metrics": dict},
    LEDGER: {"step": int, "groups": list},
    ERRORS: {"step": int},
}
"""What a line of each growing file must hold."""


@dataclass(slots=True)
class Records:
    """The files of one run directory that grow with training."""

    directory: RunDirectory
    keep_checkpoints: int
    repaired: list[str] = field(init=False)  # messages for the user: what was damaged, and what was done about it
    _metrics: JsonlMonitor = field(init=False)
    _ledger: Ledger = field(init=False)
    _errors: LineFile = field(init=False)
    _saved: int = field(init=False, default=0)
    _evaluated: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        for part in (self.directory.path, self.directory.rollouts, self.directory.adapters):
            sweep_torn(part)
        self.repaired = [line for name, keys in KEYS.items() for line in repair_lines(self.directory.path / name, keys)]
        self._metrics = JsonlMonitor(self.directory.metrics)
        self._ledger = Ledger(self.directory.ledger)
        self._errors = LineFile(self.directory.errors)

    def step(
        self,
        step: int,
        groups: Sequence[Group],
        tally: Tally,
        advantages: list[list[float]],
        metrics: Mapping[str, float],
        details: Sequence[Sequence[Turns]] | None = None,
    ) -> dict[str, Any]:
        """Write one trained step and return one of its rollouts, to be shown.

        `details` is, for each rollout of each group, what the learner made of its tokens.
        """
        rows = [
            rollout_row(
                state,
                group=str(group.id),
                environment=group.environment,
                advantage=advantage,
                details=None if details is None else details[number][index],
            )
            for number, (group, advantages_G) in enumerate(zip(groups, advantages, strict=True))
            for index, (state, advantage) in enumerate(zip(group.states, advantages_G, strict=True))
        ]
        write_step(self.directory.rollouts, step, rows)
        if tally.errors:
            self._errors.append(
                {"step": step, "environment": environment, "error": error, "rollouts": count}
                for (environment, error), count in tally.errors.most_common()
            )
        self.trained(step, [str(group.id) for group in groups], metrics)
        return rows[(step * 7919) % len(rows)]

    def trained(self, step: int, ids: list[str], metrics: Mapping[str, float]) -> None:
        """Write a step's metrics, and in the ledger the ids of what it trained: groups, or rows of data."""
        self._metrics.step(StepReport(step, dict(metrics)))
        self._ledger.append(step, ids)

    def measured(self, metrics: Mapping[str, float]) -> None:
        """Write what was measured before the first step."""
        self._metrics.step(StepReport(0, dict(metrics)))

    def evaluation(self, report: EvalReport) -> EvalReport:
        """Write an evaluation down and return it without its rollouts, as it may be kept."""
        write_evaluation(self.directory.rollouts, report)
        self._metrics.evaluation(report)
        self._evaluated.add(report.step)
        return replace(report, scores=[replace(score, rows=[]) for score in report.scores])

    @property
    def evaluations(self) -> list[EvalReport]:
        """Those on record, in the order in which they were made."""
        return read_evaluations(self.directory.path / EVALS)

    def curve(self, name: str) -> list[tuple[int, float]]:
        """A metric by step, where it is on record."""
        rows = read_lines(self.directory.metrics) if self.directory.metrics.exists() else ()
        return [(row["step"], row[name]) for row in rows if isinstance(row.get(name), float)]

    def evaluated(self, step: int) -> bool:
        """Whether the evaluation of `step` is on record."""
        return step in self._evaluated

    def save(self, step: int, learner: Learner, state: Mapping[str, Any]) -> bool:
        """A checkpoint of `step`, unless it is there already; `state` is what the loop has to remember."""
        if step == self._saved:
            return False

        def write(directory: Path) -> None:
            learner.save(directory)
            (directory / CURRICULUM).write_text(json_line(state), encoding="utf-8")

        save_checkpoint(self.directory.checkpoints, step, write, keep=self.keep_checkpoints)
        self._saved = step
        return True

    def rewind(self, learner: Learner, chosen: int | None = None) -> tuple[int, dict[str, Any], list[str]]:
        """Load the newest checkpoint that verifies, or that of step `chosen`, and forget what was written after it.

        What was written after a chosen step, and checkpoints that were passed over, are archived in `set_aside/`.
        Returns the step (0 when there is no checkpoint), the loop's state, and a line for each checkpoint passed over.
        Raises `RunError` where there are checkpoints and none can be used, or not the chosen one.
        """
        root = self.directory.checkpoints
        checkpoint, passed_over = newest_checkpoint(root) if chosen is None else (load_checkpoint(root, chosen), [])
        step = 0 if checkpoint is None else checkpoint.step
        state: dict[str, Any] = {}
        if checkpoint is not None:
            learner.load(checkpoint.path)
            state = json.loads((checkpoint.path / CURRICULUM).read_text(encoding="utf-8"))
        elif passed_over:
            lines = "\n".join(f"  {line}" for line in passed_over)
            raise RunError(
                f"no checkpoint can be used:\n{lines}\nRestore one of them, or begin again under another name (--name)."
            )
        if (archive := archive_after(self.directory.path, step, records=chosen is not None)) is not None:
            self.repaired.append(f"what came after step {step} is kept in {archive}")
        self._metrics.truncate_after(step)
        self._ledger.truncate_after(step)
        self.repaired += complete_ledger(self._ledger, self.directory.rollouts, step)
        self.repaired += missing_steps(self.directory.metrics, step)
        self._errors.keep(lambda row: row["step"] <= step)
        discard_after(self.directory.rollouts, step)
        self._saved = step
        self._evaluated = {report.step for report in self.evaluations}
        return step, state, passed_over


LINE_FILES = (METRICS, EVALS, LEDGER, ERRORS)
NUMBERED = re.compile(r"(?:eval_)?step_(\d+)")


def archive_after(run: Path, step: int, *, records: bool) -> Path | None:
    """Move what is later than `step` out of the way; where it is now, or None where there was nothing.

    Without `records`, only checkpoints: those passed over because they are damaged. With them also rollouts, and the
    growing files are copied before they are cut.
    """
    checkpoints = _later(run / "checkpoints", step)
    rollouts = _later(run / "rollouts", step) if records else []
    if not checkpoints and not rollouts:
        return None
    target = free_path(run / "set_aside", f"after_step_{step}")
    if records:
        target.mkdir(parents=True)
        for name in LINE_FILES:
            if (run / name).is_file():
                shutil.copyfile(run / name, target / name)
    # Checkpoints last and newest first: killed half-way, the newest that is left is still one that records agree with.
    for path in [*rollouts, *reversed(checkpoints)]:
        archived = target / path.parent.name / path.name
        archived.parent.mkdir(parents=True, exist_ok=True)
        os.rename(path, archived)
    return target


def discard_after(rollouts: Path, step: int) -> None:
    """Remove what a run resumed from `step` writes again: later steps and evaluations, and the one after training."""
    for path in (*_later(rollouts, step), rollouts / "eval_after.jsonl"):
        path.unlink(missing_ok=True)


def _later(directory: Path, step: int) -> list[Path]:
    """What is named after a later step, in order."""
    paths = directory.iterdir() if directory.is_dir() else ()
    numbered = [(int(match[1]), path) for path in paths if (match := NUMBERED.fullmatch(path.stem))]
    return [path for number, path in sorted(numbered) if number > step]


def repair_lines(path: Path, keys: Mapping[str, type]) -> list[str]:
    """Take every whole line out of `path` that is no JSON object with these keys; messages for the user about them."""
    if not path.exists():
        return []
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    damaged = [number for number, line in enumerate(lines) if line.endswith(b"\n") and not _holds(line, keys)]
    if not damaged:
        return []
    damaged_file = path.with_name(f"{path.name}.damaged")
    with damaged_file.open("ab") as file:
        file.writelines(lines[number] for number in damaged)
    write_whole(path, b"".join(line for number, line in enumerate(lines) if number not in set(damaged)))
    return [f"{path}: {_numbered('line', [number + 1 for number in damaged])} damaged; moved to {damaged_file.name}"]


def _holds(line: bytes, keys: Mapping[str, type]) -> bool:
    try:
        row = json.loads(line)
    except ValueError:
        return False
    return isinstance(row, dict) and all(isinstance(row.get(key), kind) for key, kind in keys.items())


def complete_ledger(ledger: Ledger, rollouts: Path, step: int) -> list[str]:
    """Put back the steps up to `step` that the ledger lost, out of their rollouts; messages for the user."""
    notes = []
    for missing in sorted(set(range(1, step + 1)) - ledger.steps.keys()):
        path = step_path(rollouts, missing)
        groups = _groups_of(path)
        if groups is None:
            notes.append(f"{ledger.path}: step {missing} is missing, and {path} cannot say which groups it trained")
            continue
        ledger.restore(missing, groups)
        notes.append(f"{ledger.path}: step {missing} was missing; taken from {path}")
    return notes


def _groups_of(path: Path) -> list[str] | None:
    try:
        return list(dict.fromkeys(str(row["group"]) for row in read_lines(path))) or None
    except (OSError, RunError, KeyError):
        return None


def missing_steps(path: Path, step: int) -> list[str]:
    """A message for the user about the steps up to `step` that a file of metrics lacks."""
    there: Collection[Any] = {row["step"] for row in read_lines(path)} if path.exists() else set()
    missing = [number for number in range(1, step + 1) if number not in there]
    return [f"{path}: {_numbered('step', missing)} missing; the curves have a gap there"] if missing else []


def sweep_torn(directory: Path) -> None:
    """Remove temporary files of a process that was killed. The directory is this process's own."""
    for path in directory.glob(".*.tmp"):
        if path.is_dir():
            shutil.rmtree(path)
        elif f".{os.getpid()}." not in path.name:
            path.unlink(missing_ok=True)


def _numbered(word: str, numbers: list[int]) -> str:
    """`line 3 is`, `lines 3, 5 and 40 more are`"""
    if len(numbers) == 1:
        return f"{word} {numbers[0]} is"
    shown = ", ".join(map(str, numbers[:5]))
    return f"{word}s {shown}{f' and {len(numbers) - 5} more' if len(numbers) > 5 else ''} are"
