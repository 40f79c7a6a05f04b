"""A review in the terminal. What comes from the package is made harmless first."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from whet.authoring.review.findings import SEVERITIES, Report, Severity
from whet.authoring.review.probes import RIGHT
from whet.system.terminal import safe_text

STYLES: dict[Severity, str] = {"error": "bold red", "warning": "yellow", "note": "cyan"}
LIMIT = 600


def print_report(report: Report, console: Console | None = None) -> None:
    """Every finding with what to do, then what was measured, then the verdict."""
    console = console or Console(highlight=False)
    for finding in report.findings:
        where = f"  {safe_text(finding.where, LIMIT)}" if finding.where else ""
        head = Text.assemble((f"{finding.severity:<8}", STYLES[finding.severity]), (finding.code, "bold"), where)
        console.print(head, soft_wrap=True)
        for text in (finding.message, finding.fix):
            if text:
                console.print(Text(f"        {safe_text(text, LIMIT)}"), soft_wrap=True)
    for line in fact_lines(report):
        console.print(Text(line), soft_wrap=True)
    console.print(Text(verdict(report), style="bold"), soft_wrap=True)


def fact_lines(report: Report) -> Iterator[str]:
    facts = report.facts
    if facts.get("kind"):
        rows = f"{facts.get('train_rows', 0)} training and {facts.get('eval_rows', 0)} evaluation tasks"
        yield f"loaded    {safe_text(facts['kind'])} with {rows} in {facts['load_seconds']:.2f} s"
    if "rollouts" in facts:
        each = 1000 * facts["seconds_per_rollout"]
        yield f"tried     {facts['rollouts']} rollouts of scripted models, {each:.1f} ms each"
        means: dict[str, float] = facts["mean_rewards"]
        earned = sorted((item for item in means.items() if item[1]), key=lambda item: -item[1])
        right = [item for item in earned if item[0].startswith(RIGHT)][:1]
        shown = right + [item for item in earned if not item[0].startswith(RIGHT)]
        text = ", ".join(f"{probe} {mean:.2f}" for probe, mean in shown)
        yield f"rewards   {text + '; everything else 0' if text else 'all 0'}"


def verdict(report: Report) -> str:
    counts = ", ".join(
        f"{count} {severity}{'' if count == 1 else 's'}"
        for severity in SEVERITIES
        if (count := report.count(severity)) or severity == "error"
    )
    return f"{safe_text(report.environment)}: {counts}"
