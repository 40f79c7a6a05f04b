"""The doctor: what is wrong with a run, what shows it, and the change to make.

    examine(runs/my-run)   reads what a run wrote (reading.py), applies every rule (rules/), most urgent finding first
    line(runs/my-run)      the most urgent one, on one line
    LiveDoctor             the same line while a run is active, from the numbers of the last steps alone

A run is looked at, never touched; it may be running, dead or finished. Rules are pure functions of a `RunRecord`.
The readiness of a saved evaluation is reported in the same shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.errors import WhetError
from whet.records.directory import METADATA, RESULTS
from whet.records.lock import evaluation_state
from whet.rl.doctor.finding import SEVERITIES, Severity, most_urgent_first
from whet.rl.doctor.finding import Advice as Advice
from whet.rl.doctor.finding import DoctorFinding as DoctorFinding
from whet.rl.doctor.record import KEPT_FIRST, KEPT_LAST, RunRecord
from whet.rl.doctor.rules import EXPLAINED_BY, RULES
from whet.rl.report.data import RunData
from whet.rl.stored.stored_run import open_run

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

    What the live view says, which holds the first and the last steps alone, is found of a whole run too.
    """
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
    from whet.rl.doctor.reading import read_record

    if _is_evaluation(path):
        return Diagnosis("evaluation", path, *_readiness_of(path))
    run = read_record(path)
    return Diagnosis("run", run.data.directory, run.life.state, run.steps, diagnose(run))


def line(path: Path) -> str | None:
    """The most urgent finding on one line; None where there is none. Raises as `examine` does."""
    findings = examine(path).findings
    return findings[0].line if findings else None


def _is_evaluation(path: Path) -> bool:
    """Whether a path names results of an evaluation, rather than a run."""
    return path.name in (RESULTS, METADATA) or (path / RESULTS).is_file()


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
