"""What watches a run: the terminal, status.json, files and experiment trackers."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from whet.rl.monitors.group import MonitorGroup as MonitorGroup
from whet.rl.monitors.protocol import Monitor as Monitor
from whet.system.terminal import safe_text


def announce(run: str, model: str, tasks: Sequence[str], *, quiet: bool) -> None:
    """The first line of a run, on standard error: the model and the environments or data that are being loaded."""
    if not quiet:
        what = ", ".join([model, *tasks])
        print(safe_text(f"{run}: loading {what}", 400), file=sys.stderr, flush=True)


def console_and_others(*, quiet: bool, status: Monitor | None = None, others: Sequence[Monitor] = ()) -> MonitorGroup:
    """The terminal (unless `quiet`), status.json, and whatever else is asked for."""
    monitors: list[Monitor] = []
    if not quiet:
        from whet.rl.monitors.console import ConsoleMonitor

        monitors.append(ConsoleMonitor())
    if status is not None:
        monitors.append(status)
    return MonitorGroup([*monitors, *others])
