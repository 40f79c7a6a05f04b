"""The doctor's findings as a section of the report."""

from __future__ import annotations

from collections.abc import Sequence

from whet.display.html import Html, join, tag
from whet.rl.doctor.finding import DoctorFinding


def findings_html(findings: Sequence[DoctorFinding]) -> Html:
    """What is wrong, what shows it, and what to change; nothing where nothing is wrong."""
    if not findings:
        return join()
    return join(tag("h2", "What the doctor found"), *map(_finding, findings))


def _finding(finding: DoctorFinding) -> Html:
    changes = [tag("li", tag("b", "Change: "), change.text) for change in finding.changes]
    evidence = [tag("li", line) for line in finding.evidence]
    return join(
        tag(
            "h3",
            tag("span", finding.severity, class_="down" if finding.severity == "error" else None),
            ": ",
            finding.what,
        ),
        tag("ul", *evidence, *changes),
    )
