"""Shows training while it works: a live view where standard output is a terminal, else one line a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from whet.display.live import Output, RunView
from whet.display.picture import bar, one_line, sample_panel, times_text
from whet.display.text import error_lines, number
from whet.records.directory import EVALS, METRICS
from whet.rl.doctor import LiveDoctor
from whet.rl.monitors.jsonl import read_evaluations
from whet.rl.monitors.progress import LOSSES, Difference, RunProgress, ScoreComparison, compare
from whet.rl.monitors.protocol import EvalReport, Monitor, Outcome, RunPlan, StepReport
from whet.rollouts.totals import EvalScore
from whet.system.files import read_lines
from whet.system.terminal import duration, safe_text, sparkline

KEYS = "Ctrl-C  stop with a checkpoint; twice: end at once"


class ConsoleMonitor(RunView, Monitor):
    """Shows a run; by default on standard output, and without reading keys: an environment may want them."""

    def __init__(self, output: Output | None = None) -> None:
        super().__init__(output or Output.find(stderr=False, keys=False))
        self.progress: RunProgress | None = None
        self._doctor: LiveDoctor | None = None

    def start(self, plan: RunPlan) -> None:
        self.progress = RunProgress(plan, self.clock)
        self._doctor = LiveDoctor.of(plan.directory, plan.first_step)
        if plan.first_step > 1:  # so that the end can be compared with the beginning
            self.progress.evaluations += read_evaluations(plan.directory / EVALS)
            self.progress.remember(_rows_before(plan.directory, plan.first_step))
        self.line(plan_line(plan))
        self.begin()

    def phase(self, name: str, done: int, total: int) -> None:
        if self.progress is None:
            return
        begins = name != self.progress.phase
        self.progress.on_phase(name, done, total)
        self.changed()
        if begins and name == "evaluate":
            self.line(f"evaluating {total} rollouts of held-out tasks")

    def step(self, report: StepReport) -> None:
        if self.progress is None:
            return
        new = {name: text for name, text in report.failures.items() if self.progress.failures.get(name) != text}
        with self.lock:
            self.progress.on_step(report)
        if self._doctor is not None:
            self._examine(lambda doctor: doctor.step(report.step, report.metrics))
        self.changed()
        self.line(step_line(self.progress))
        for line in error_lines(new):
            self.line(f"rollouts fail: {line}")

    def rewound(self, step: int) -> None:
        if self.progress is None:
            return
        directory = self.progress.plan.directory
        with self.lock:
            self.progress.rewind(step, _rows_before(directory, step + 1))
        self._doctor = LiveDoctor.of(directory, step + 1)
        self.changed()

    def _examine(self, look: Callable[[LiveDoctor], None]) -> None:
        """Let the doctor look; as plain lines, a finding is printed when it is another than before."""
        assert self.progress is not None
        assert self._doctor is not None
        before = self._doctor.name
        look(self._doctor)
        self.progress.finding = self._doctor.line
        if self._doctor.line is not None and self._doctor.name != before:
            self.line(f"doctor: {safe_text(self._doctor.line, 400)}")

    def evaluation(self, report: EvalReport) -> None:
        if self.progress is None:
            return
        with self.lock:
            self.progress.on_evaluation(report)
        self.changed()
        self.line(evaluation_line(report))

    def ended(self, outcome: Outcome) -> None:
        if self._doctor is not None and self.progress is not None:
            self._examine(LiveDoctor.look)  # its last word is about the last steps too
        self.close()
        self._print_comparison()
        steps, took = f"{outcome.step} step" + ("" if outcome.step == 1 else "s"), ""
        if self.progress is not None:
            took = f" in {duration(self.progress.elapsed)}"
            before = self.progress.plan.first_step - 1
            if before:
                took = f", {max(0, outcome.step - before)} of them since it was resumed,{took}"
        why = "" if outcome.state == "finished" else f": {safe_text(outcome.message, 2000)}"
        self.print(f"{outcome.state} after {steps}{took}{why}")
        for label, text in output_paths(outcome):
            self.print(f"{label:<9} {text}")
        self.progress = None

    def _print_comparison(self) -> None:
        if self.progress is None:
            return
        before, after = self.progress.evaluation("before"), self.progress.evaluation("after")
        table = comparison_table(before, after)
        if table is None:
            return
        self.console.print(table)
        errors = sum(score.errors for report in (before, after) if report for score in report.scores)
        if errors:
            self.print(f"{errors} errored rollouts are left out of these means.")
            examples = [score.error_examples for report in (before, after) if report for score in report.scores]
            for line in error_lines({kind: text for one in examples for kind, text in one.items()}):
                self.print(f"  {line}")

    def draw(self, width: int, height: int, footer: str) -> RenderableType:
        return "" if self.progress is None else live_view(self.progress, width, height, footer, self.sampling())

    def footer(self, keys: bool, stop_requested: bool) -> str:
        return "" if self.closed else KEYS


def _rows_before(directory: Path, step: int) -> Iterator[dict[str, Any]]:
    """The steps on record before `step`, so that the curves of a run that is resumed begin where it began."""
    metrics = directory / METRICS
    return (row for row in (read_lines(metrics) if metrics.is_file() else ()) if row["step"] < step)


# The terminal's pictures of a run: pure functions from `RunProgress` to what rich prints.

SAMPLE_LINES = 8
CURVE_BESIDE = 2 * 8 + 3 * 3
"""Columns of the table of rewards next to names and curves: two numbers with their heads, and what separates them."""


def signed(value: float | None, reach: float | None = None) -> Text:
    """A difference, with half of its 95 % interval: green up, red down, and neither where the interval holds 0."""
    if value is None or not math.isfinite(value):
        return Text("-", style="dim")
    style = "dim" if abs(value) <= (reach or 0.0) else "green" if value > 0 else "red"
    return Text(f"{value:+.3f}" + ("" if reach is None else f" ±{reach:.2f}"), style=style)


def plan_line(plan: RunPlan) -> str:
    size = f", {_count(plan.parameters)} parameters" if plan.parameters else ""
    if plan.trained_parameters and plan.trained_parameters < plan.parameters:
        size += f" ({_count(plan.trained_parameters)} trained)"
    resumed = f", resumed at step {plan.first_step}" if plan.first_step > 1 else ""
    groups = plan.batch_size // plan.rollouts_per_example
    batch = plan.batch or f"{groups} tasks x {plan.rollouts_per_example} rollouts"
    return safe_text(
        f"{plan.name}: {plan.model}{size}, {plan.max_steps} steps of {batch}, seed {plan.seed}{resumed}", 400
    )


def _count(parameters: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if parameters >= size:
            return f"{parameters / size:.3g}{unit}"
    return str(parameters)


def live_view(progress: RunProgress, width: int, height: int, footer: str = "", sampling: str = "") -> RenderableType:
    """The whole live view, in at most `height` lines; `footer` is the last one, left out where it is empty.

    `sampling` is what the policy is sampling, in words.
    """
    head: list[RenderableType] = [
        one_line(plan_line(progress.plan), "bold"),
        _bar(progress, width),
        _phase(progress),
    ]
    if sampling:
        head.append(one_line(sampling, "cyan"))
    if progress.finding is not None:
        head.append(one_line(f"doctor: {safe_text(progress.finding, 400)}", "yellow"))
    head += [one_line(f"rollouts fail: {line}", "red") for line in error_lines(progress.failures, 2)]
    room = height - len(head) - 4  # the table's head and foot, the line of keys, and a line to spare
    curves = _rewards(progress, width, max(1, room)) if progress.plan.environments else _losses(progress, width)
    parts = [*head, curves]
    sample_room = room - min(room, len(progress.names)) - 3
    if progress.sample is not None and sample_room >= 2:
        row = progress.sample
        title = f"step {progress.sample_step}, {row.get('environment')}: reward {number(row.get('reward'), 2)}"
        if row.get("advantage") is not None:
            title += f", advantage {row['advantage']:+.2f}"
        parts.append(sample_panel(row, title, width, min(SAMPLE_LINES, sample_room)))
    if footer:
        parts.append(one_line(footer, "dim"))
    return Group(*parts)


def _bar(progress: RunProgress, width: int) -> Text:
    total = progress.plan.max_steps
    label = f" {progress.step}/{total}  {times_text(progress.elapsed, progress.remaining)}"
    return bar(progress.step, total, width, label, head="step")


def _phase(progress: RunProgress) -> Text:
    what = progress.phase
    if progress.phase_total > 1:
        what += f" {progress.phase_done}/{progress.phase_total}"
    parts = [f"{what:<20}"]
    if (speed := progress.metrics.get("perf/tokens_per_s")) is not None and math.isfinite(speed):
        parts.append(f"{speed:,.0f} tokens/s")
    if (seconds := progress.step_seconds) is not None:
        parts.append(f"{seconds:.2f} s a step")
    return one_line("  ".join(parts), "cyan")


def _rewards(progress: RunProgress, width: int, rows: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("environment", no_wrap=True, overflow="ellipsis", max_width=max(10, width // 3))
    table.add_column("held-out", justify="right", style="dim")
    table.add_column("reward", justify="right")
    table.add_column("from the first step", justify="left", no_wrap=True)
    names = [*progress.names, ""] if len(progress.plan.environments) > 1 else progress.names
    longest = max((len(_shown_name(name, name not in progress.plan.environments)) for name in names), default=0)
    curve = max(4, width - max(len("environment"), min(longest, max(10, width // 3))) - CURVE_BESIDE)
    hidden = len(names) - rows
    for name in names if hidden <= 0 else [*names[: rows - 2], ""]:
        rewards = progress.rewards.get(name, [])
        table.add_row(
            Text(_shown_name(name, name not in progress.plan.environments)) if name else Text("mean", style="bold"),
            number(progress.held_out(name)) if name else "",
            number(rewards[-1] if rewards else None),
            Text(sparkline(rewards, curve, low=0.0, high=1.0), style="green"),
        )
    if hidden > 0:
        table.add_row(Text(f"and {hidden + 1} more", style="dim"), "", "", "")
    return table


def _losses(progress: RunProgress, width: int) -> Table:
    """What imitation goes by: the newest value of each loss, and its curve."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("")
    table.add_column("loss", justify="right")
    table.add_column("from the first step", justify="left", no_wrap=True)
    for name, label in LOSSES.items():
        if losses := progress.losses.get(name):
            curve = sparkline(losses, max(4, width - CURVE_BESIDE), low=0.0, high=max(losses))
            table.add_row(label, number(losses[-1]), Text(curve, style="green"))
    return table


def step_line(progress: RunProgress) -> str:
    """One step on one line, for logs."""
    plan, metrics = progress.plan, progress.metrics
    parts = [f"step {progress.step}/{plan.max_steps}"]
    if plan.environments:
        parts.append(f"reward {number(metrics.get('reward/mean'))}")
    else:
        known = {label: metrics[name] for name, label in LOSSES.items() if name in metrics}
        parts += [f"{label} loss {number(loss)}" for label, loss in known.items()]
    if len(plan.environments) > 1:
        known = {name: metrics[key] for name in plan.environments if (key := f"reward/{name}/mean") in metrics}
        each = ", ".join(f"{safe_text(name, 40)} {number(reward)}" for name, reward in known.items())
        parts[-1] += f" ({each})"
    if (speed := metrics.get("perf/tokens_per_s")) is not None and math.isfinite(speed):
        parts.append(f"{speed:,.0f} tokens/s")
    if (seconds := progress.step_seconds) is not None:
        parts.append(f"{seconds:.2f} s a step")
    if (left := progress.remaining) is not None:
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)


def evaluation_line(report: EvalReport) -> str:
    """One evaluation on one line, for logs."""
    scores = ", ".join(
        f"{safe_text(score.environment, 40)} {number(score.reward)} ({score.sampling}){_members(score)}"
        + (f" {score.errors} errors ({'; '.join(error_lines(score.error_examples, 2))})" if score.errors else "")
        for score in report.scores
    )
    return f"held-out, {report.moment} training (policy version {report.version}): {scores}"


def _members(score: EvalScore) -> str:
    each = ", ".join(f"{_shown_name(one.environment, True).strip()} {number(one.reward)}" for one in score.members)
    return f" [{each}]" if each else ""


def comparison_table(before: EvalReport | None, after: EvalReport | None) -> Table | None:
    """Before and after per environment and way of sampling; None when nothing was evaluated."""
    ways, rows = compare(before, after)
    if not rows:
        return None
    table = Table(
        title="Held-out tasks, before and after training",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
        collapse_padding=True,
    )
    table.add_column("")
    for way in ways:
        table.add_column(f"{way}\nbefore", justify="right")
        table.add_column("\nafter", justify="right")
        table.add_column("\nchange", justify="right", no_wrap=True)
    if any(one.reach is not None for row in rows for one in row.values.values()):
        table.caption, table.caption_justify = "± half of the 95 % interval, paired over tasks", "left"
    for row in rows:
        last = row.environment == "mean"
        table.add_row(
            _row_name(row), *(cell for way in ways for cell in _cells(row.values[way])), style="bold" if last else None
        )
    return table


def _row_name(row: ScoreComparison) -> Text:
    if row.quantity == "reward":
        return Text(_shown_name(row.environment, row.member))
    return Text(f"  {safe_text(row.quantity, 40).replace('_', ' ')}", style="dim")


def _shown_name(name: str, member: bool) -> str:
    """A member of a group by its own name, below the group."""
    return f"  {safe_text(name.partition('/')[2], 40)}" if member else safe_text(name, 80)


def _cells(one: Difference) -> tuple[Text, Text, Text]:
    return Text(number(one.before)), Text(number(one.after)), signed(one.change, one.reach)


def output_paths(outcome: Outcome) -> list[tuple[str, str]]:
    """Where things are, and what to do next: (label, text to copy)."""
    paths = [("weights", outcome.weights), ("report", outcome.report), ("rollouts", outcome.rollouts)]
    lines = [(label, _short(path)) for label, path in paths if path is not None]
    return [*lines, ("next", outcome.next_command)] if outcome.next_command else lines


def _short(path: Path) -> str:
    """Relative to the working directory, if it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_absolute() and path.is_relative_to(here) else str(path)
