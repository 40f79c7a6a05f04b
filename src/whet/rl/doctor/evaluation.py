"""The readiness of a saved evaluation, in the shape of a finding: whether training on this would teach anything."""

from __future__ import annotations

from pathlib import Path

from whet.evals.readiness import Verdict
from whet.evals.stored import open_stored
from whet.rl.doctor.finding import Change, Finding, Severity
from whet.rollouts.results import METADATA, RESULTS
from whet.rollouts.row_log import evaluation_state

SEVERITY: dict[Verdict, Severity] = {
    "too easy": "error",
    "too hard": "error",
    "unknown": "error",
    "easy": "warning",
    "hard": "warning",
    "good": "info",
}
"""error where training would teach nothing; a good verdict is told only where there is still something to do."""


def is_evaluation(path: Path) -> bool:
    """Whether a path names results of an evaluation, rather than a run."""
    return path.name in (RESULTS, METADATA) or (path / RESULTS).is_file()


def readiness_of(path: Path) -> tuple[str, int, list[Finding]]:
    """Its state, its rollouts, and what its readiness says to change. Raises `RunError` where it cannot be read."""
    stored = open_stored(path)
    summary = stored.summary()
    found = summary.readiness
    evidence = [f"{summary.rollouts} rollouts of {summary.examples} tasks, {summary.errors} of them failed"]
    if found.score is not None:
        evidence.append(f"{found.measure} {found.score:.3f}: {found.verdict}")
    if found.group_std is not None and found.zero_variance_frac is not None:
        flat = f"{found.zero_variance_frac:.0%} of the groups have no variance"
        evidence.append(f"rewards inside a group deviate by {found.group_std:.3f} on average; {flat}")
    findings = []
    if found.verdict != "good" or found.advice:
        what = f"{summary.environment} is {found.verdict} for {summary.model}"
        changes = [Change(advice) for advice in found.advice]
        findings.append(Finding("readiness", SEVERITY[found.verdict], what, evidence, changes))
    return evaluation_state(stored.directory, stored.metadata), summary.rollouts, findings
