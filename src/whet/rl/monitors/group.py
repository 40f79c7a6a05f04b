"""`MonitorGroup`: several monitors as one, none of which can end a run.

Monitors watch; training does not depend on them. One that raises is named, once, with its error, and switched off for
the rest of the run; only `close` still reaches it. (What must be on disk for a run to be resumed is written by
`whet.rl.storage.records`, not through this.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from whet.calls import describe
from whet.rl.monitors.protocol import EvalReport, Monitor, Outcome, RunPlan, StepReport

logger = logging.getLogger(__name__)


class MonitorGroup:
    """Calls every monitor, in the order given."""

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self._all = tuple(monitors)
        self.monitors = list(monitors)

    def start(self, plan: RunPlan) -> None:
        self._call_each(lambda monitor: monitor.start(plan))

    def phase(self, name: str, done: int, total: int) -> None:
        self._call_each(lambda monitor: monitor.phase(name, done, total))

    def step(self, report: StepReport) -> None:
        self._call_each(lambda monitor: monitor.step(report))

    def evaluation(self, report: EvalReport) -> None:
        self._call_each(lambda monitor: monitor.evaluation(report))

    def note(self, message: str) -> None:
        self._call_each(lambda monitor: monitor.note(message))

    def close(self, outcome: Outcome) -> None:
        """Reaches every monitor, also one that is off: how a run ended matters most."""
        self.monitors = list(self._all)
        self._call_each(lambda monitor: monitor.close(outcome))

    def _call_each(self, call: Callable[[Monitor], None]) -> None:
        for monitor in tuple(self.monitors):
            try:
                call(monitor)
            except Exception as error:
                self.monitors.remove(monitor)
                name = type(monitor).__name__
                logger.warning(
                    "%s failed and is off for the rest of the run; training goes on. %s", name, describe(error)
                )
                logger.debug("the error of %s", name, exc_info=error)
