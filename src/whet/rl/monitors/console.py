"""The terminal during training: a live view, or one line a step where standard output is not a terminal.

Training runs on the same cores, so watching is kept cheap: a call only stores numbers, and the picture is drawn at
most four times a second (less often on a slow terminal), in the calling thread. There is no thread of its own, so
nothing here can change the order of anything else. What is drawn is decided in `views.py`.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from whet.rl.doctor import LiveDoctor
from whet.rl.monitors.jsonl import EVALS, read_evaluations
from whet.rl.monitors.progress import RunProgress
from whet.rl.monitors.protocol import EvalReport, Outcome, RunPlan, StepReport
from whet.rl.monitors.views import comparison_table, evaluation_line, live_view, output_paths, plan_line, step_line
from whet.system.files import read_lines
from whet.system.terminal import duration, safe_text

REFRESH_SECONDS = 0.25
MOST_OF_THE_TIME = 0.03
"""Share of the time that drawing may take, whatever the terminal's speed."""


class ConsoleMonitor:
    """Shows a run on `console`; `clock` is in seconds and only ever compared with itself."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console or Console(highlight=False)
        self._clock = clock
        self._progress: RunProgress | None = None
        self._live: Live | None = None
        self._doctor: LiveDoctor | None = None
        self._next_draw = float("-inf")

    def start(self, plan: RunPlan) -> None:
        self._progress = RunProgress(plan, self._clock)
        self._doctor = LiveDoctor.of(plan.directory, plan.first_step)
        if plan.first_step > 1:  # so that the end can be compared with the beginning
            self._progress.evaluations += read_evaluations(plan.directory / EVALS)
            self._progress.remember(_rows_before(plan))
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
            atexit.register(self._live.stop)  # restores the cursor where close is not called
            self._draw()
        else:
            self._print(plan_line(plan))

    def phase(self, name: str, done: int, total: int) -> None:
        if self._progress is None:
            return
        begins = name != self._progress.phase
        self._progress.on_phase(name, done, total)
        if self._live is not None:
            self._draw_now_and_then()
        elif begins and name == "evaluate":
            self._print(f"evaluating {total} rollouts of held-out tasks")

    def step(self, report: StepReport) -> None:
        if self._progress is None:
            return
        self._progress.on_step(report)
        if self._doctor is not None:
            self._examine(lambda doctor: doctor.step(report.step, report.metrics))
        if self._live is not None:
            self._draw_now_and_then()
        else:
            self._print(step_line(self._progress))

    def _examine(self, look: Callable[[LiveDoctor], None]) -> None:
        """Let the doctor look; as plain lines, a finding is printed when it is another than before."""
        assert self._progress is not None
        assert self._doctor is not None
        before = self._doctor.name
        look(self._doctor)
        self._progress.finding = self._doctor.line
        if self._live is None and self._doctor.line is not None and self._doctor.name != before:
            self._print(f"doctor: {safe_text(self._doctor.line, 400)}")

    def evaluation(self, report: EvalReport) -> None:
        if self._progress is None:
            return
        self._progress.on_evaluation(report)
        if self._live is not None:
            self._draw()
        else:
            self._print(evaluation_line(report))

    def note(self, message: str) -> None:
        for line in message.splitlines() or [""]:
            self._print(safe_text(line, 1000))

    def close(self, outcome: Outcome) -> None:
        if self._doctor is not None and self._progress is not None:
            self._examine(LiveDoctor.look)  # its last word is about the last steps too
        if self._live is not None:
            self._draw(keys=False)
            self._live.stop()
            atexit.unregister(self._live.stop)
            self._live = None
        self._print_comparison()
        steps, took = _steps(outcome.step), ""
        if self._progress is not None:
            took = f" in {duration(self._progress.elapsed)}"
            before = self._progress.plan.first_step - 1
            if before:
                took = f", {max(0, outcome.step - before)} of them since it was resumed,{took}"
        why = "" if outcome.state == "finished" else f": {safe_text(outcome.message, 2000)}"
        self._print(f"{outcome.state} after {steps}{took}{why}")
        for label, text in output_paths(outcome):
            self._print(f"{label:<9} {text}")
        self._progress = None

    def _print_comparison(self) -> None:
        if self._progress is None:
            return
        before, after = self._progress.evaluation("before"), self._progress.evaluation("after")
        table = comparison_table(before, after)
        if table is None:
            return
        self.console.print(table)
        errors = sum(score.errors for report in (before, after) if report for score in report.scores)
        if errors:
            self._print(f"{errors} errored rollouts are left out of these means.")

    def _draw_now_and_then(self) -> None:
        if self._clock() >= self._next_draw:
            self._draw()

    def _draw(self, keys: bool = True) -> None:
        assert self._live is not None
        assert self._progress is not None
        began = self._clock()
        size = self.console.size
        self._live.update(live_view(self._progress, size.width, size.height, keys=keys), refresh=True)
        ended = self._clock()
        self._next_draw = ended + max(REFRESH_SECONDS, (ended - began) / MOST_OF_THE_TIME)

    def _print(self, line: str) -> None:
        """One line, never broken, so that it can be copied and grepped."""
        self.console.print(Text(line), soft_wrap=True)
        if not self.console.is_terminal:
            self.console.file.flush()


def _steps(count: int) -> str:
    return f"{count} step" + ("" if count == 1 else "s")


def _rows_before(plan: RunPlan) -> Iterator[dict[str, Any]]:
    """The steps on record of a run that is resumed, so that its curves begin where it began."""
    metrics = plan.directory / "metrics.jsonl"
    return (row for row in (read_lines(metrics) if metrics.is_file() else ()) if row["step"] < plan.first_step)
