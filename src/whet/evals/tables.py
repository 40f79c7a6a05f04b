"""Several evaluations in the terminal, a line each: those of one session, and those that were saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from whet.evals.statistics import Estimate
from whet.evals.stored import StoredHead
from whet.evals.summary import EvalSummary
from whet.terminal import duration, safe_text

RIGHT = {"reward", "95 % interval", "pass@k", "rollouts", "errors", "tokens", "seconds", "cost"}
"""Columns of numbers."""


def print_table(summaries: Sequence[EvalSummary], console: Console | None = None) -> None:
    """The evaluations of one session, numbered, what a sweep varied in columns of its own.

    Below, by their numbers, what to change for training, and where each is saved.
    """
    console = console or Console(highlight=False)
    _print_rows([{"": str(number), **summary_cells(one)} for number, one in enumerate(summaries, start=1)], console)
    advice: dict[str, list[str]] = {}
    for number, one in enumerate(summaries, start=1):
        for line in one.readiness.advice:
            advice.setdefault(line, []).append(str(number))
    for line, numbers in advice.items():
        console.print(Text.assemble((f"{', '.join(numbers)}: ", "bold"), line), soft_wrap=True)
    for number, one in enumerate(summaries, start=1):
        if one.results is not None:
            console.print(Text.assemble(("saved  ", "bold"), f"{number}: {one.results}"), soft_wrap=True)


def summary_cells(summary: EvalSummary) -> dict[str, str]:
    """One evaluation by column. What is unknown is empty."""
    varied = {name: value for name, value in summary.varied.items() if name not in ("environment", "model")}
    largest = max(summary.pass_at_k, key=int, default=None)
    return {
        "environment": safe_text(summary.environment, 40),
        "model": safe_text(summary.model, 40),
        **{safe_text(name, 30): _value(value) for name, value in varied.items()},
        "reward": "" if summary.reward is None else f"{summary.reward.mean:.3f}",
        "95 % interval": _interval(summary.reward),
        "pass@k": "" if largest is None else f"@{largest} {summary.pass_at_k[largest]:.3f}",
        "errors": f"{summary.errors}/{summary.rollouts}",
        "tokens": "" if summary.output_tokens is None else f"{summary.output_tokens:,.0f}",
        "seconds": f"{summary.seconds:.1f}",
        "cost": "" if summary.cost is None else f"${summary.cost:.4f}",
        "readiness": summary.readiness.verdict,
    }


def print_heads(heads: Sequence[StoredHead], console: Console | None = None) -> None:
    """The list of saved evaluations, a line each; then how to go on with those that did not end."""
    console = console or Console(highlight=False)
    _print_rows([_head_cells(head) for head in heads], console)
    for head in heads:
        if head.resume is not None:
            console.print(Text.assemble(("go on      ", "bold"), safe_text(head.resume, 4000)), soft_wrap=True)


def varied_text(varied: Mapping[str, Any]) -> str:
    """`temperature=0.5 args.level=2`."""
    return " ".join(f"{safe_text(name, 30)}={_value(value)}" for name, value in varied.items())


def seconds_text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)


def _head_cells(head: StoredHead) -> dict[str, str]:
    return {
        "date": head.date[:16],
        "environment": safe_text(head.environment, 40),
        "model": safe_text(head.model, 40),
        "varied": varied_text(head.varied),
        "state": "" if head.state == "finished" else head.state,
        "reward": "" if head.reward is None else f"{head.reward:.3f}",
        "rollouts": str(head.rollouts) if head.state == "finished" else f"{head.done}/{head.rollouts}",
        "errors": str(head.errors),
        "directory": str(head.directory),
    }


def _print_rows(rows: Sequence[Mapping[str, str]], console: Console) -> None:
    """Aligned columns under their names; columns without any value are left out. Lines are not folded."""
    columns = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if not rows or any(row.get(name) for row in rows)
    ]
    cells = [columns, *([row.get(name, "") for name in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for place, line in enumerate(cells):
        padded = [
            f"{cell:>{width}}" if name in RIGHT else f"{cell:<{width}}"
            for cell, width, name in zip(line, widths, columns, strict=True)
        ]
        console.print(Text("  ".join(padded).rstrip(), "bold" if place == 0 else ""), soft_wrap=True)


def _interval(reward: Estimate | None) -> str:
    return "" if reward is None or reward.low is None else f"{reward.low:.3f} to {reward.high:.3f}"


def _value(value: Any) -> str:
    return safe_text(f"{value:g}" if isinstance(value, float) else value, 30)
