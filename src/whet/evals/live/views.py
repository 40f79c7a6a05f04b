"""The live view's pictures: pure functions from `SessionFacts` to lines for rich, as many as there is room for.

Text from models and environments goes through `safe_text` and into `Text` objects, never through markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from whet.display.panel import sample_panel
from whet.display.text import number, usage_text
from whet.evals.analysis.statistics import MeanInterval
from whet.evals.live.progress import EvalFacts, EvalLine, SessionFacts
from whet.evals.observer import PlannedEval
from whet.system.terminal import duration, safe_text

LABEL = 11
SAMPLE_LINES = 10
LEAST_SAMPLE = 4
"""Lines of a panel that are worth having: its frame, and two inside."""
NAME = 80
"""Characters of an environment's, a model's or a metric's name that are read at all."""
KEYS = "s sample   q stop"
SEVERAL_KEYS = "←/→ evaluation   s sample   q stop"
STOP = "Stop the evaluation? q again stops it, any other key continues."


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
        parts.append(_line(Text(footer, style="dim")))
    return Group(*parts)


def footer(keys: bool, several: bool, asked_to_stop: bool) -> str:
    """What the keys do; nothing where no keys are read."""
    if asked_to_stop:
        return STOP
    return (SEVERAL_KEYS if several else KEYS) if keys else ""


def _session(facts: SessionFacts, width: int, room: int) -> list[Text]:
    """A line on everything, then one for each evaluation, those around the selected one where there are too many."""
    head = f"{len(facts.lines)} evaluations"
    lines = [_bar(facts.done, facts.total, facts.elapsed, facts.remaining, facts.rate, width, head)]
    most = max(1, room // 3)
    first = min(max(0, facts.selected - most // 2), max(0, len(facts.lines) - most))
    shown = facts.lines[first : first + most]
    longest = max(len(safe_text(line.name, NAME)) for line in shown)
    done_width = max(len(_done(line)) for line in shown)
    name_width = max(10, min(longest, width - done_width - 26))
    for place, line in enumerate(shown, first):
        lines.append(_eval_line(line, place == facts.selected, name_width, done_width))
    if (hidden := len(facts.lines) - len(shown)) and room >= 12:
        lines.append(_line(Text(f"  and {hidden} more", style="dim")))
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
    return _line(text)


def _details(facts: EvalFacts, width: int) -> list[Text]:
    """One evaluation, most important first."""
    lines = [
        _line(Text(plan_line(facts.plan), style="bold")),
        _bar(facts.done, facts.plan.rollouts, facts.elapsed, facts.remaining, facts.rate, width),
        _labelled("reward", estimate_text(facts.reward)),
    ]
    if facts.members:
        each = (f"{safe_text(name, 40)} {estimate_text(reward)}" for name, reward in facts.members.items())
        lines.append(_labelled("members", ", ".join(each)))
    if facts.errors:
        lines.append(_labelled("errors", _errors(facts), "red"))
    if facts.metrics:
        lines.append(_labelled("metrics", _pairs(facts.metrics)))
    if facts.pass_at_k:
        lines.append(_labelled("pass@k", f"{_pairs(facts.pass_at_k)} (reward >= {facts.plan.pass_threshold:g})"))
    if facts.truncated:
        lines.append(_labelled("truncated", f"{facts.truncated} rollouts were cut off"))
    if effort := _effort(facts):
        lines.append(_labelled("tokens", effort))
    if facts.slowest:
        slow = ", ".join(f"{seconds:.1f} s task {safe_text(task, 20)}" for seconds, task in facts.slowest)
        lines.append(_labelled("slowest", slow))
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


def _bar(
    done: int, total: int, elapsed: float, remaining: float | None, rate: float | None, width: int, head: str = ""
) -> Text:
    """How far it has come: a bar, numbers, times. Readable by its characters, not by colour alone."""
    times = duration(elapsed)
    if done < total and remaining is not None:
        times += f", {duration(remaining)} left"
    label = f" {done}/{total}  {times}" + _rate(rate)
    head = f"{head} " if head else ""
    room = max(8, min(40, width - len(head) - len(label)))
    full = room * min(done, total) // total if total else room
    bar = Text.assemble((head, "bold"), ("━" * full, "green"), ("─" * (room - full), "dim"), label)
    return _line(bar)


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"  {rate:.1f} rollouts/s" if rate < 10 else f"  {rate:,.0f} rollouts/s"


def _labelled(label: str, text: str, style: str = "") -> Text:
    return _line(Text.assemble((f"{label:<{LABEL}}", "bold"), (text, style)))


def _pairs(values: Mapping[str, float]) -> str:
    return ", ".join(f"{safe_text(name, NAME)} {number(value)}" for name, value in values.items())


def _line(text: Text) -> Text:
    """Never more than one line."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def progress_line(facts: EvalFacts) -> str:
    """How far one evaluation has come, on one line, for logs."""
    parts = [
        f"{safe_text(facts.name, NAME)} {facts.done}/{facts.plan.rollouts}",
        f"reward {estimate_text(facts.reward)}",
    ]
    if facts.errors:
        parts.append(f"errors {_errors(facts)}")
    if facts.rate is not None:
        parts.append(_rate(facts.rate).strip())
    if facts.remaining is not None and not facts.finished:
        parts.append(f"{duration(facts.remaining)} left")
    return "  ".join(parts)
