"""The live view's pictures: pure functions from `SessionFacts` to lines for rich, as many as there is room for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from whet.display.picture import bar, labelled, one_line, rate_text, sample_panel, times_text
from whet.display.text import number, usage_text
from whet.evals.analysis.statistics import MeanInterval
from whet.evals.live.progress import EvalFacts, EvalLine, SessionFacts
from whet.evals.observer import PlannedEval
from whet.system.terminal import duration, safe_text

SAMPLE_LINES = 10
LEAST_SAMPLE = 4
"""Lines of a panel that are worth having: its frame, and two inside."""
NAME = 80
"""Characters of an environment's, a model's or a metric's name that are read at all."""


def live_view(facts: SessionFacts, sample: str, width: int, height: int, footer: str = "") -> RenderableType:
    """The whole live view, in at most `height` lines.

    Args:
        facts: what is known.
        sample: which of the shown evaluation's samples, one of `SAMPLES`.
        width, height: columns and lines there are.
        footer: a last line, left out where it is empty.
    """
    room = height - bool(footer)
    parts: list[RenderableType] = list(_session(facts, width, room)) if len(facts.lines) > 1 else []
    details = _details(facts.detail, width)
    # What matters most comes first, so a small window cuts off the rest.
    parts += details[: max(1, room - len(parts))]
    room -= len(parts)
    row = facts.detail.samples.get(sample) or facts.detail.samples.get("latest")
    if row is not None and room >= LEAST_SAMPLE:
        title = sample_title(sample if sample in facts.detail.samples else "latest", row)
        parts.append(sample_panel(row, title, width, min(SAMPLE_LINES, room - 2)))
    if footer:
        parts.append(one_line(footer, "dim"))
    return Group(*parts)


def _session(facts: SessionFacts, width: int, room: int) -> list[Text]:
    """A line on everything, then one for each evaluation, those around the selected one where there are too many."""
    head = f"{len(facts.lines)} evaluations"
    lines = [_bar(facts, width, head)]
    most = max(1, room // 3)
    first = min(max(0, facts.selected - most // 2), max(0, len(facts.lines) - most))
    shown = facts.lines[first : first + most]
    longest = max(len(safe_text(line.name, NAME)) for line in shown)
    done_width = max(len(_done(line)) for line in shown)
    name_width = max(10, min(longest, width - done_width - 26))
    for place, line in enumerate(shown, first):
        lines.append(_eval_line(line, place == facts.selected, name_width, done_width))
    if (hidden := len(facts.lines) - len(shown)) and room >= 12:
        lines.append(one_line(f"  and {hidden} more", "dim"))
    return lines


def _done(line: EvalLine) -> str:
    return f"{line.done}/{line.total}"


def _eval_line(line: EvalLine, selected: bool, name_width: int, done_width: int) -> Text:
    mark = "✓" if line.finished else " "
    text = Text.assemble(
        ("▸ " if selected else "  "),
        (f"{safe_text(line.name, name_width):<{name_width}}", "bold" if selected else ""),
        f"  {_done(line):>{done_width}} {mark} {number(line.reward.mean if line.reward else None):>6}",
    )
    if line.errors:
        text.append(f"  {line.errors} failed", style="red")
    return one_line(text)


def _details(facts: EvalFacts, width: int) -> list[Text]:
    """One evaluation, most important first."""
    lines = [
        one_line(plan_line(facts.plan), "bold"),
        _bar(facts, width),
        labelled("reward", estimate_text(facts.reward)),
    ]
    if facts.members:
        each = (f"{safe_text(name, 40)} {estimate_text(reward)}" for name, reward in facts.members.items())
        lines.append(labelled("members", ", ".join(each)))
    if facts.errors:
        lines.append(labelled("errors", _errors(facts), "red"))
    if facts.metrics:
        lines.append(labelled("metrics", _pairs(facts.metrics)))
    if facts.pass_at_k:
        lines.append(labelled("pass@k", f"{_pairs(facts.pass_at_k)} (reward >= {facts.plan.pass_threshold:g})"))
    if facts.truncated:
        lines.append(labelled("truncated", f"{facts.truncated} rollouts were cut off"))
    if effort := _effort(facts):
        lines.append(labelled("tokens", effort))
    if facts.slowest:
        slow = ", ".join(f"{seconds:.1f} s task {safe_text(task, 20)}" for seconds, task in facts.slowest)
        lines.append(labelled("slowest", slow))
    return lines


def plan_line(plan: PlannedEval) -> str:
    """What is about to be done, on one line."""
    kept = f", {plan.kept} kept from before" if plan.kept else ""
    return (
        f"{safe_text(plan.environment, NAME)} with {safe_text(plan.model, NAME)}, {safe_text(plan.sampling, 40)}: "
        f"{plan.examples} tasks x {plan.rollouts_per_example} rollouts{kept}"
    )


def estimate_text(reward: MeanInterval | None) -> str:
    """A mean and its interval."""
    if reward is None:
        return "-"
    if reward.low is None or reward.high is None:
        return number(reward.mean)
    return f"{number(reward.mean)} (95 % interval {number(reward.low)} to {number(reward.high)})"


def _errors(facts: EvalFacts) -> str:
    kinds = ", ".join(f"{safe_text(kind, NAME)} {count}" for kind, count in facts.error_kinds)
    return f"{facts.errors} of {facts.done}: {kinds}"


def _effort(facts: EvalFacts) -> str:
    parts = []
    if facts.output_tokens is not None:
        parts.append(f"{facts.input_tokens or 0:,.0f} in, {facts.output_tokens:,.0f} out")
    if facts.output_tokens_per_second:
        parts.append(f"{facts.output_tokens_per_second:,.0f} out/s")
    if facts.cost is not None:
        parts.append(f"${facts.cost:.4f}")
    if facts.judge_usage:
        parts.append(f"judges {usage_text(facts.judge_usage)}")
    return ", ".join(parts)


def sample_title(kind: str, row: Mapping[str, Any]) -> str:
    """`best, task 3: reward 1.00`, or what failed."""
    title = f"{kind}, task {row.get('example_id')}: "
    error = row.get("error")
    return title + (str(error.get("error_chain_repr")) if error else f"reward {number(row.get('reward'), 2)}")


def _bar(facts: EvalFacts | SessionFacts, width: int, head: str = "") -> Text:
    remaining = facts.remaining if facts.done < facts.total else None
    label = f" {facts.done}/{facts.total}  {times_text(facts.elapsed, remaining)}  {rate_text(facts.rate, 'rollouts')}"
    return bar(facts.done, facts.total, width, label.rstrip(), head=head)


def _pairs(values: Mapping[str, float]) -> str:
    return ", ".join(f"{safe_text(name, NAME)} {number(value)}" for name, value in values.items())


def progress_line(facts: EvalFacts) -> str:
    """How far one evaluation has come, on one line, for logs."""
    parts = [
        f"{safe_text(facts.name, NAME)} {facts.done}/{facts.plan.rollouts}",
        f"reward {estimate_text(facts.reward)}",
    ]
    if facts.errors:
        parts.append(f"errors {_errors(facts)}")
    if facts.rate is not None:
        parts.append(rate_text(facts.rate, "rollouts"))
    if facts.remaining is not None and not facts.finished:
        parts.append(f"{duration(facts.remaining)} left")
    return "  ".join(parts)
