"""What the doctor says: a finding, what shows it, what to change. Plain data, the same in terminal, page and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""error: the run does not learn or does not continue; warning: it learns less than it could; info: worth knowing."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A change to make: a key of the config with its new value, or (`key` None) what a config cannot say."""

    why: str
    key: str | None = None  # as on the command line: sampling.max_tokens, env.0.weight
    value: Any = None
    now: Any = None  # the key's value in the run

    @property
    def text(self) -> str:
        """`key = value  (now 24): why`, as it would stand in the file."""
        if self.key is None:
            return self.why
        was = "" if self.now is None else f"  (now {toml_value(self.now)})"
        return f"{self.key} = {toml_value(self.value)}{was}: {self.why}"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One thing that is wrong."""

    rule: str
    severity: Severity
    what: str  # one sentence
    evidence: Sequence[str]  # sentences with numbers and the steps they are from
    changes: Sequence[Advice]  # most important first

    @property
    def line(self) -> str:
        """The finding and its first change on one line."""
        return f"{self.what}: {self.changes[0].text}" if self.changes else self.what

    @property
    def view(self) -> dict[str, Any]:
        """As the dashboard and a report have it."""
        changes = [{**asdict(one), "text": one.text} for one in self.changes]
        return {
            "severity": self.severity,
            "rule": self.rule,
            "title": self.what,
            "evidence": list(self.evidence),
            "change": changes[0]["text"] if changes else None,
            "changes": changes,
        }


Found: TypeAlias = tuple[Severity, str, Sequence[str], Sequence[Advice]]
"""What a rule yields: a `DoctorFinding` without the name of its rule."""


def rounded(value: float) -> float:
    """A number that a person would write: two digits of it."""
    return float(f"{value:.2g}")


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, float):
        return f"{value:g}" if value != int(value) or abs(value) >= 1e6 else f"{value:.1f}"
    return json.dumps(value)


def most_urgent_first(findings: Sequence[DoctorFinding]) -> list[DoctorFinding]:
    """By severity; of equal ones in the order of the rules."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
