"""Shows a session of evaluations while it works: a live view in a terminal, plain lines elsewhere.

Plain lines are few enough for a log: one at the start and at the end of each evaluation, one for each tenth of its
rollouts, one a minute where a tenth takes longer, and every note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from whet.display.live import Output, RunView
from whet.display.picture import bar, labelled, one_line, rate_text, sample_panel, times_text
from whet.display.text import error_lines, number, pairs_text, usage_text
from whet.evals.analysis.statistics import MeanInterval
from whet.evals.analysis.summary import EvalSummary
from whet.evals.live.progress import SAMPLES, EvalProgress, Progress, SessionProgress
from whet.evals.observer import EvalObserver, PlannedEval
from whet.system.terminal import duration, safe_text
from whet.types import RolloutOutput


def open_view(*, quiet: bool = False) -> EvalObserver:
    """The observer of a session; one that does nothing where `quiet`.

    Close it, whatever happens: `with contextlib.closing(open_view()) as view`.
    """
    return EvalObserver() if quiet else EvalView(Output.find())


class EvalView(RunView, EvalObserver):
    """An observer that shows a session."""

    stop_question = "Stop the evaluation? q again stops it, any other key continues."

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._session = SessionProgress((), output.clock)
        self._selected: int | None = None  # None: the one that works
        self._sample = 0

    @property
    def keys(self) -> str:
        return ("←/→ evaluation   " if len(self._session.evaluations) > 1 else "") + "s sample   q stop"

    def start(self, evaluations: Sequence[PlannedEval]) -> None:
        self._session = SessionProgress(evaluations, self.clock)
        for index, plan in enumerate(evaluations):
            self.passed(10 * plan.kept // max(1, plan.rollouts), index)
            self.line(plan_line(plan))
        for caution in dict.fromkeys(plan.caution for plan in evaluations if plan.caution):
            self.print(caution)
        self.begin()

    def rollout(self, evaluation: int, row: RolloutOutput) -> None:
        with self.lock:
            self._session.rollout(evaluation, row)
        self.changed()
        progress = self._session.evaluations[evaluation]
        tenth = min(9, 10 * progress.done // max(1, progress.total))  # the last one is reported by `finish`
        if not self.live and self.due(tenth, evaluation):
            self._report(evaluation)

    def finish(self, evaluation: int, summary: EvalSummary) -> None:
        with self.lock:
            self._session.finish(evaluation)
        self.changed()
        if not self.live:
            self._report(evaluation, f"  in {duration(summary.seconds)}")

    def _report(self, evaluation: int, more: str = "") -> None:
        self.print(progress_line(self._session.evaluations[evaluation]) + more)

    @property
    def transient(self) -> bool:
        """The summary replaces the picture; where there will be none, the last picture stays."""
        return self._session.finished

    def draw(self, width: int, height: int, footer: str) -> RenderableType:
        return live_view(self._session, self._shown, SAMPLES[self._sample], width, height, footer, self.sampling())

    @property
    def _shown(self) -> int:
        return self._session.current if self._selected is None else self._selected

    def move(self, by: int) -> None:
        self._selected = (self._shown + by) % len(self._session.evaluations)

    def key(self, key: str) -> None:
        if key == "s":
            self._sample = (self._sample + 1) % len(SAMPLES)


# The pictures: pure functions from `SessionProgress` to lines for rich, as many as there is room for.

SAMPLE_LINES = 10
LEAST_SAMPLE = 4
"""Lines of a panel that are worth having: its frame, and two inside."""
NAME = 80
"""Characters of an environment's, a model's or a metric's name that are read at all."""


def live_view(
    session: SessionProgress, selected: int, sample: str, width: int, height: int, footer: str = "", sampling: str = ""
) -> RenderableType:
    """The whole live view, in at most `height` lines.

    Args:
        session: what is known.
        selected: the evaluation that is shown in detail.
        sample: which of its samples, one of `SAMPLES`.
        width, height: columns and lines there are.
        footer: a last line, left out where it is empty.
        sampling: what a model run here is sampling, in words.
    """
    room = height - bool(footer)
    detail = session.evaluations[selected]
    several = len(session.evaluations) > 1
    parts: list[RenderableType] = list(_session(session, selected, width, room)) if several else []
    # What matters most comes first, so a small window cuts off the rest.
    parts += _details(detail, width, sampling)[: max(1, room - len(parts))]
    room -= len(parts)
    row = detail.samples.get(sample) or detail.samples.get("latest")
    if row is not None and room >= LEAST_SAMPLE:
        title = sample_title(sample if sample in detail.samples else "latest", row)
        parts.append(sample_panel(row, title, width, min(SAMPLE_LINES, room - 2)))
    if footer:
        parts.append(one_line(footer, "dim"))
    return Group(*parts)


def _session(session: SessionProgress, selected: int, width: int, room: int) -> list[Text]:
    """A line on everything, then one for each evaluation, those around the selected one where there are too many."""
    every = session.evaluations
    lines = [_bar(session, width, f"{len(every)} evaluations")]
    most = max(1, room // 3)
    first = min(max(0, selected - most // 2), max(0, len(every) - most))
    shown = every[first : first + most]
    longest = max(len(safe_text(one.name, NAME)) for one in shown)
    done_width = max(len(_done(one)) for one in shown)
    name_width = max(10, min(longest, width - done_width - 26))
    for index, one in enumerate(shown, first):
        lines.append(_eval_line(one, index == selected, name_width, done_width))
    if (hidden := len(every) - len(shown)) and room >= 12:
        lines.append(one_line(f"  and {hidden} more", "dim"))
    return lines


def _done(one: EvalProgress) -> str:
    return f"{one.done}/{one.total}"


def _eval_line(one: EvalProgress, selected: bool, name_width: int, done_width: int) -> Text:
    mark = " " if one.ended is None else "✓"
    reward = one.scores.reward()
    text = Text.assemble(
        ("▸ " if selected else "  "),
        (f"{safe_text(one.name, name_width):<{name_width}}", "bold" if selected else ""),
        f"  {_done(one):>{done_width}} {mark} {number(reward.mean if reward else None):>6}",
    )
    if one.totals.num_errors:
        text.append(f"  {one.totals.num_errors} failed", style="red")
    return one_line(text)


def _details(one: EvalProgress, width: int, sampling: str) -> list[Text]:
    """One evaluation, most important first."""
    totals, averages = one.totals, one.totals.averages()
    lines = [
        one_line(plan_line(one.plan), "bold"),
        _bar(one, width),
        *([labelled("sampling", sampling)] if sampling else []),
        labelled("reward", estimate_text(one.scores.reward())),
    ]
    if one.members:
        each = (f"{safe_text(name, 40)} {estimate_text(scores.reward())}" for name, scores in one.members.items())
        lines.append(labelled("members", ", ".join(each)))
    if totals.num_errors:
        lines.append(labelled("errors", _errors(one), "red"))
        lines += [one_line(f"  {line}", "red") for line in error_lines(totals.error_examples, 3)]
    if averages["avg_metrics"]:
        lines.append(labelled("metrics", pairs_text(dict(sorted(averages["avg_metrics"].items())))))
    if averages["pass_at_k"]:
        lines.append(labelled("pass@k", f"{pairs_text(averages['pass_at_k'])} (reward >= {one.plan.pass_threshold:g})"))
    if totals.num_truncated:
        lines.append(labelled("truncated", f"{totals.num_truncated} rollouts were cut off"))
    if effort := _effort(one):
        lines.append(labelled("tokens", effort))
    if one.slowest:
        slow = ", ".join(f"{seconds:.1f} s task {safe_text(task, 20)}" for seconds, task in one.slowest)
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
    return f"{reward.mean:.3f} (95 % interval {reward.interval})" if reward.interval else number(reward.mean)


def _errors(one: EvalProgress) -> str:
    return f"{one.totals.num_errors} of {one.done}: {pairs_text(one.totals.error_kinds)}"


def _effort(one: EvalProgress) -> str:
    totals, parts = one.totals, []
    if totals.usage:
        tokens = (totals.usage[name].total for name in ("input_tokens", "output_tokens"))
        parts.append("{:,.0f} in, {:,.0f} out".format(*tokens))
    if one.new_output_tokens and one.elapsed > 0:
        parts.append(f"{one.new_output_tokens / one.elapsed:,.0f} out/s")
    if totals.cost is not None:
        parts.append(f"${totals.cost:.4f}")
    if totals.judges:
        parts.append(f"judges {usage_text(totals.judge_usage)}")
    return ", ".join(parts)


def sample_title(kind: str, row: Mapping[str, Any]) -> str:
    """`best, task 3: reward 1.00`, or what failed."""
    title = f"{kind}, task {row.get('example_id')}: "
    error = row.get("error")
    return title + (str(error.get("error_chain_repr")) if error else f"reward {number(row.get('reward'), 2)}")


def _bar(one: Progress, width: int, head: str = "") -> Text:
    times = times_text(one.elapsed, one.remaining if one.done < one.total else None)
    label = f" {one.done}/{one.total}  {times}  {rate_text(one.rate, 'rollouts')}"
    return bar(one.done, one.total, width, label.rstrip(), head=head)


def progress_line(one: EvalProgress) -> str:
    """How far one evaluation has come, on one line, for logs."""
    parts = [f"{safe_text(one.name, NAME)} {one.done}/{one.total}", f"reward {estimate_text(one.scores.reward())}"]
    if one.totals.num_errors:
        parts.append(f"errors {_errors(one)}")
    if one.rate is not None:
        parts.append(rate_text(one.rate, "rollouts"))
    if one.remaining is not None and one.ended is None:
        parts.append(f"{duration(one.remaining)} left")
    return "  ".join(parts)
