"""Several evaluations in the terminal, a line each: those of one session, and those that were saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from whet.display.columns import print_fact, print_rows
from whet.evals.statistics import Estimate
from whet.evals.stored import StoredHead
from whet.evals.summary import EvalSummary
from whet.system.terminal import duration, safe_text

RIGHT = {"pass@k", "rollouts", "errors", "tokens", "seconds", "cost", "judges"}
"""Columns of numbers."""


def print_table(summaries: Sequence[EvalSummary], console: Console | None = None) -> None:
    """The evaluations of one session, numbered, what a sweep varied in columns of its own.

    What all have in common stands above. Below, by their numbers, what to change for training, and where each is saved.
    """
    console = console or Console(highlight=False)
    rows = [summary_cells(summary) for summary in summaries]
    common = [name for name in ("environment", "model") if len({row[name] for row in rows}) == 1]
    if common:
        print_fact("evaluated", ", ".join(f"{name} {rows[0][name]}" for name in common), console)
        rows = [{name: value for name, value in row.items() if name not in common} for row in rows]
    print_rows([{"": str(number), **row} for number, row in enumerate(rows, start=1)], console, RIGHT)
    advice: dict[str, list[str]] = {}
    for number, summary in enumerate(summaries, start=1):
        for line in summary.readiness.advice:
            advice.setdefault(line, []).append(str(number))
    for line, numbers in advice.items():
        print_fact(", ".join(numbers), line, console)
    for number, summary in enumerate(summaries, start=1):
        if summary.results is not None:
            print_fact("saved", f"{number}: {summary.results}", console, fold=False)


def summary_cells(summary: EvalSummary) -> dict[str, str]:
    """One evaluation by column. What is unknown is empty."""
    varied = {
        name.removeprefix("args."): value
        for name, value in summary.varied.items()
        if name not in ("environment", "model")
    }
    largest = max(summary.pass_at_k, key=int, default=None)
    return {
        "environment": safe_text(summary.environment, 40),
        "model": safe_text(summary.model, 40),
        **{safe_text(name, 30): _value(value) for name, value in varied.items()},
        "reward": _reward(summary.reward),
        "pass@k": "" if largest is None else f"@{largest} {summary.pass_at_k[largest]:.3f}",
        "errors": f"{summary.errors}/{summary.rollouts}",
        "tokens": "" if summary.output_tokens is None else f"{summary.output_tokens:,.0f}",
        "seconds": f"{summary.seconds:.1f}",
        "cost": "" if summary.cost is None else f"${summary.cost:.4f}",
        "judges": _judges(summary.judge_usage),
        "readiness": summary.readiness.verdict,
    }


def print_heads(heads: Sequence[StoredHead], console: Console | None = None) -> None:
    """The list of saved evaluations, a line each; then how to continue those that did not end."""
    console = console or Console(highlight=False)
    print_rows([_head_cells(head) for head in heads], console, RIGHT)
    for head in heads:
        if head.resume is not None:
            print_fact("go on", safe_text(head.resume, 4000), console, fold=False)


def varied_text(varied: Mapping[str, Any]) -> str:
    """`temperature=0.5 args.level=2`."""
    return " ".join(f"{safe_text(name, 30)}={_value(value)}" for name, value in varied.items())


def seconds_text(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
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


def _reward(reward: Estimate | None) -> str:
    if reward is None:
        return ""
    return f"{reward.mean:.3f}" + ("" if reward.low is None else f" ({reward.low:.3f} to {reward.high:.3f})")


def _judges(usage: Mapping[str, float]) -> str:
    """What they cost; where nobody knows, the tokens they used."""
    if not usage:
        return ""
    if "cost" in usage:
        return f"${usage['cost']:.4f}"
    return f"{usage['input_tokens'] + usage['output_tokens']:,.0f} tokens"


def _value(value: Any) -> str:
    return safe_text(f"{value:g}" if isinstance(value, float) else value, 30)
