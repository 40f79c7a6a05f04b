"""The doctor: what is wrong with a run, what shows it, and the change to make.

    examine(runs/my-run)   reads what a run wrote (reading.py), asks every rule (rules/), most urgent finding first
    line(runs/my-run)      the most urgent one, on one line

A run is looked at, never touched; it may be going on, have died, or be done. Rules are pure functions of a `RunRecord`.
Of a saved evaluation its readiness is told in the same shape (evaluation.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whet.rl.doctor.finding import SEVERITIES, most_urgent_first
from whet.rl.doctor.finding import Change as Change
from whet.rl.doctor.finding import Finding as Finding
from whet.rl.doctor.record import RunRecord
from whet.rl.doctor.rules import EXPLAINED_BY, RULES


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was looked at, and what was found."""

    what: str  # "run" or "evaluation"
    path: Path
    state: str  # running, finished, failed, interrupted, died, ...
    step: int  # of a run; rollouts of an evaluation
    findings: list[Finding]  # most urgent first; empty where nothing is wrong

    @property
    def ill(self) -> bool:
        """Whether something keeps the run from learning or from going on."""
        return any(finding.severity == "error" for finding in self.findings)


def diagnose(run: RunRecord) -> list[Finding]:
    """What is wrong with a run, most urgent first; empty where nothing is.

    What the live view says, which holds the first and the last steps alone, is found of a whole run too.
    """
    found = [finding for rule in RULES for finding in rule(run)]
    names = {finding.rule for finding in found}
    recent = run.as_seen_live()
    if recent is not run:
        found += [
            finding
            for rule in RULES
            for finding in rule(recent)
            if finding.rule not in names and finding.severity != "info"
        ]
    return most_urgent_first([finding for finding in found if not _is_explained(finding, found)])


def _is_explained(finding: Finding, found: Sequence[Finding]) -> bool:
    """Whether it follows from another one, at least as severe: a warning never hides an error."""
    severity = SEVERITIES.index(finding.severity)
    explaining = EXPLAINED_BY.get(finding.rule, ())
    return any(other.rule in explaining and SEVERITIES.index(other.severity) <= severity for other in found)


def examine(path: Path) -> Diagnosis:
    """Of a run (its directory, or its name below runs/) or of a saved evaluation (its directory or results file).

    Raises `RunError` for what is neither, or cannot be read.
    """
    from whet.rl.doctor.evaluation import is_evaluation, readiness_of
    from whet.rl.doctor.reading import read_record

    if is_evaluation(path):
        return Diagnosis("evaluation", path, *readiness_of(path))
    run = read_record(path)
    return Diagnosis("run", run.data.directory, run.life.state, run.steps, diagnose(run))


def line(path: Path) -> str | None:
    """The most urgent finding on one line; None where there is none. Raises as `examine` does."""
    findings = examine(path).findings
    return findings[0].line if findings else None
