"""Shows training while it works: a live view where standard output is a terminal, else one line a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from whet.display.text import error_lines
from whet.records.directory import EVALS, METRICS
from whet.records.live import Output, RunView
from whet.rl.doctor import LiveDoctor
from whet.rl.monitors.jsonl import read_evaluations
from whet.rl.monitors.progress import RunProgress
from whet.rl.monitors.protocol import EvalReport, Monitor, Outcome, RunPlan, StepReport
from whet.rl.monitors.views import comparison_table, evaluation_line, live_view, output_paths, plan_line, step_line
from whet.system.files import read_lines
from whet.system.terminal import duration, safe_text

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
        steps, took = _steps(outcome.step), ""
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


def _steps(count: int) -> str:
    return f"{count} step" + ("" if count == 1 else "s")


def _rows_before(directory: Path, step: int) -> Iterator[dict[str, Any]]:
    """The steps on record before `step`, so that the curves of a run that is resumed begin where it began."""
    metrics = directory / METRICS
    return (row for row in (read_lines(metrics) if metrics.is_file() else ()) if row["step"] < step)
