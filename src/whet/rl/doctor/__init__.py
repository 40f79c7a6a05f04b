"""The doctor: what is wrong with a run, what shows it, and the change to make.

    examine(runs/my-run)   reads what a run wrote, applies every rule (rules/), most urgent finding first
    line(runs/my-run)      the most urgent one, on one line
    LiveDoctor             the same line while a run is active, from the numbers of the last steps alone

A run is looked at, never touched; it may be running, dead or finished. Rules are pure functions of a `RunRecord`.
The readiness of a saved evaluation is reported in the same shape.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.errors import WhetError
from whet.records.directory import METADATA, RESULTS
from whet.records.lock import evaluation_state
from whet.rl.doctor.record import KEPT_FIRST, KEPT_LAST, SEVERITIES, Life, Row, RunRecord, Severity, most_urgent_first
from whet.rl.doctor.record import Advice as Advice
from whet.rl.doctor.record import DoctorFinding as DoctorFinding
from whet.rl.doctor.rules import EXPLAINED_BY, RULES
from whet.rl.report.data import RunData
from whet.rl.storage.checkpoints import checkpoints_in, fault_of
from whet.rl.storage.run_directory import RunDirectory, step_path
from whet.rl.stored.stored_run import StoredTraining, open_run
from whet.system.files import read_lines

if TYPE_CHECKING:
    from whet.evals.analysis.readiness import Verdict


READINESS_SEVERITY: dict[Verdict, Severity] = {
    "too easy": "error",
    "too hard": "error",
    "unknown": "error",
    "easy": "warning",
    "hard": "warning",
    "good": "info",
}
"""error where training would teach nothing; a good verdict is listed only where something is left to do."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was looked at, and what was found."""

    what: str  # "run" or "evaluation"
    path: Path
    state: str  # running, finished, failed, interrupted, died, ...
    step: int  # of a run; rollouts of an evaluation
    findings: list[DoctorFinding]  # most urgent first; empty where nothing is wrong

    @property
    def ill(self) -> bool:
        """Whether something keeps the run from learning or from going on."""
        return any(finding.severity == "error" for finding in self.findings)


def diagnose(run: RunRecord) -> list[DoctorFinding]:
    """What is wrong with a run, most urgent first; empty where nothing is.

    What the live view says, which holds the first and the last steps alone, is found of a whole run too. Of a model of
    `whet tinker serve` nothing is said: the loop is a client's, and what could be changed is not in a config of whet.
    """
    if "tinker" in run.data.config:
        return []
    findings = list(_findings(run))
    names = {finding.rule for finding in findings}
    if (recent := run.as_seen_live()) is not run:
        findings += [one for one in _findings(recent) if one.rule not in names and one.severity != "info"]
    return most_urgent_first([finding for finding in findings if not _is_explained(finding, findings)])


def _findings(run: RunRecord) -> Iterator[DoctorFinding]:
    return (DoctorFinding(name, *finding) for name, rule in RULES.items() for finding in rule(run))


def _is_explained(finding: DoctorFinding, others: Sequence[DoctorFinding]) -> bool:
    """Whether it follows from another one, at least as severe: a warning never hides an error."""
    severity = SEVERITIES.index(finding.severity)
    explaining = EXPLAINED_BY.get(finding.rule, ())
    return any(other.rule in explaining and SEVERITIES.index(other.severity) <= severity for other in others)


def examine(path: Path) -> Diagnosis:
    """Of a run (its directory, or its name below runs/) or of a saved evaluation (its directory or results file).

    Raises `RunError` for what is neither, or cannot be read.
    """
    if path.name in (RESULTS, METADATA) or (path / RESULTS).is_file():
        return Diagnosis("evaluation", path, *_readiness_of(path))
    run = read_record(path)
    return Diagnosis("run", run.data.directory, run.life.state, run.steps, diagnose(run))


def line(path: Path) -> str | None:
    """The most urgent finding on one line; None where there is none. Raises as `examine` does."""
    findings = examine(path).findings
    return findings[0].line if findings else None


def _readiness_of(path: Path) -> tuple[str, int, list[DoctorFinding]]:
    """Its state, its rollouts, and what its readiness says to change. Raises `RunError` where it cannot be read."""
    from whet.evals.stored.stored import open_stored  # training looks at itself without loading evaluations

    stored = open_stored(path)
    summary = stored.summary()
    readiness = summary.readiness
    evidence = [f"{summary.rollouts} rollouts of {summary.examples} tasks, {summary.errors} of them failed"]
    if readiness.score is not None:
        evidence.append(f"{readiness.measure} {readiness.score:.3f}: {readiness.verdict}")
    if readiness.group_std is not None and readiness.zero_variance_frac is not None:
        flat = f"{readiness.zero_variance_frac:.0%} of the groups have no variance"
        evidence.append(f"rewards inside a group deviate by {readiness.group_std:.3f} on average; {flat}")
    findings = []
    if readiness.verdict != "good" or readiness.advice:
        what = f"{summary.environment} is {readiness.verdict} for {summary.model}"
        changes = [Advice(advice) for advice in readiness.advice]
        findings.append(DoctorFinding("readiness", READINESS_SEVERITY[readiness.verdict], what, evidence, changes))
    return evaluation_state(stored.directory, stored.metadata), summary.rollouts, findings


LIVE_EVERY = 5
"""Steps between two looks: a look costs about a millisecond."""


class LiveDoctor:
    """Takes a run's metrics step by step; `line` is the finding to show, or None, and `name` its rule."""

    def __init__(self, config: Mapping[str, Any], before: Iterable[Mapping[str, Any]] = ()) -> None:
        """`before` are the steps on record when the run is resumed."""
        self.line: str | None = None
        self.name: str | None = None
        self._config = dict(config)
        self._first: list[dict[str, Any]] = []
        self._last: list[dict[str, Any]] = []
        for row in before:
            self._keep(dict(row))

    @classmethod
    def of(cls, directory: Path, first_step: int = 1) -> LiveDoctor | None:
        """Of a run that begins; None where its files cannot be read, for then there is nothing to look at."""
        try:
            run = open_run(directory)
            before = [row for row in run.metrics() if row["step"] < first_step]
        except (OSError, WhetError):
            return None
        return cls(run.config, before)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """One step more; every few of them are looked at."""
        self._keep({"step": step, **metrics})
        if step % LIVE_EVERY == 0:
            self.look()

    def look(self) -> None:
        """At the steps so far."""
        if self._first:
            rows = [*self._first, *self._last]
            data = RunData(Path(), self._config, rows, [])
            findings = [finding for finding in diagnose(RunRecord(data)) if finding.severity != "info"]
            self.line, self.name = (findings[0].line, findings[0].rule) if findings else (None, None)

    def _keep(self, row: dict[str, Any]) -> None:
        if len(self._first) < KEPT_FIRST:
            self._first.append(row)
            return
        self._last.append(row)
        del self._last[:-KEPT_LAST]


# A `RunRecord` from the files of a run directory. Nothing is written, and nothing is held but for a moment.

MOST_ROLLOUTS = 1024
"""Rollouts of a step that are looked at: enough for any share, and no more memory than that of a step."""


def read_record(path: Path, *, verify: bool = True, ends: int | None = None) -> RunRecord:
    """What a run wrote so far, by its directory or its name. Raises `RunError` for what is no run or cannot be read.

    `verify` reads the newest checkpoint whole, to compare it with its hashes. `ends` are bytes: of longer metrics the
    first and the last steps in so many are read, as rules need them.
    """
    run = open_run(path)
    data = RunData.of(run, ends)
    directory = RunDirectory(run.directory)
    steps = [int(row["step"]) for row in data.metrics]
    return RunRecord(
        data=data,
        life=_life(run, verify=verify),
        errors=list(read_lines(directory.errors)) if directory.errors.is_file() else (),
        rollouts=_rollouts(directory, steps[-1:]),
        first_rollouts=_rollouts(directory, steps[:1]),
    )


def _rollouts(directory: RunDirectory, steps: list[int]) -> Sequence[Row]:
    """Rows of the first step of the list whose rollouts are there, without their tokens."""
    for step in steps:
        path = step_path(directory.rollouts, step)
        if path.is_file():
            rows = islice(read_lines(path), MOST_ROLLOUTS)
            return [{key: value for key, value in row.items() if key != "turns"} for row in rows]
    return ()


def _life(run: StoredTraining, *, verify: bool) -> Life:
    directory = RunDirectory(run.directory)
    checkpoints = checkpoints_in(directory.checkpoints)
    faults = [f"{one.path.name}: {fault}" for one in checkpoints[:1] if verify and (fault := fault_of(one.path))]
    return Life(
        state=run.state,
        silent_seconds=_age(run.status.get("heartbeat")),
        last_error=run.status.get("last_error"),
        stalled=run.status.get("stalled") or (),
        faults=faults,
        checkpoints=[one.step for one in reversed(checkpoints)],
    )


def _age(heartbeat: Any) -> float:
    """Seconds since a heartbeat; 0 where there is none."""
    try:
        return max(0.0, time.time() - datetime.fromisoformat(heartbeat).timestamp())
    except (TypeError, ValueError):
        return 0.0
