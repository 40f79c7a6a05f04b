"""What watches a run: the terminal, status.json, files and experiment trackers, none of which can end a run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

from whet.calls import describe
from whet.display.live import forwards
from whet.rl.monitors.protocol import Monitor as Monitor
from whet.rl.monitors.protocol import Outcome
from whet.system.terminal import safe_text


def announce(run: str, model: str, tasks: Sequence[str], *, quiet: bool) -> None:
    """The first line of a run, on standard error: the model and the environments or data that are being loaded."""
    if not quiet:
        what = ", ".join([model, *tasks])
        print(safe_text(f"{run}: loading {what}", 400), file=sys.stderr, flush=True)


def console_and_others(*, quiet: bool, status: Monitor | None = None, others: Sequence[Monitor] = ()) -> MonitorGroup:
    """The terminal (unless `quiet`), status.json, and `others`."""
    monitors: list[Monitor] = []
    if not quiet:
        from whet.rl.monitors.console import ConsoleMonitor

        monitors.append(ConsoleMonitor())
    if status is not None:
        monitors.append(status)
    return MonitorGroup([*monitors, *others])


logger = logging.getLogger(__name__)


@forwards
class MonitorGroup(Monitor):
    """Several monitors as one: calls every monitor, in the order given.

    Training does not depend on monitors. One that raises is named, once, with its error, and switched off for the rest
    of the run; only `ended` still reaches it. (What must be on disk for a run to be resumed is written by
    `whet.rl.storage.records`, not through this.)
    """

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self._all = tuple(monitors)
        self.monitors = list(monitors)

    def ended(self, outcome: Outcome) -> None:
        """Reaches every monitor, also one that is off: how a run ended matters most."""
        self.monitors = list(self._all)
        self.send("ended", outcome)

    def send(self, event: str, *args: Any) -> None:
        for monitor in tuple(self.monitors):
            try:
                getattr(monitor, event)(*args)
            except Exception as error:
                self.monitors.remove(monitor)
                name = type(monitor).__name__
                logger.warning(
                    "%s failed and is off for the rest of the run; training goes on. %s", name, describe(error)
                )
                logger.debug("the error of %s", name, exc_info=error)
