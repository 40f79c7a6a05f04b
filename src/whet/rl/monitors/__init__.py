"""What watches a run: the terminal, status.json, files and experiment trackers."""

from __future__ import annotations

from collections.abc import Sequence

from whet.rl.monitors.group import MonitorGroup as MonitorGroup
from whet.rl.monitors.protocol import Monitor as Monitor


def console_and_others(*, quiet: bool, status: Monitor | None = None, others: Sequence[Monitor] = ()) -> MonitorGroup:
    """The terminal (unless `quiet`), status.json, and whatever else is asked for."""
    monitors: list[Monitor] = []
    if not quiet:
        from whet.rl.monitors.console import ConsoleMonitor

        monitors.append(ConsoleMonitor())
    if status is not None:
        monitors.append(status)
    return MonitorGroup([*monitors, *others])
