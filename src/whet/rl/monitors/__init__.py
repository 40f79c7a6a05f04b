"""What watches a run: the terminal, status.json, files and experiment trackers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

from whet.rl.monitors.config import TrackioConfig, WandbConfig
from whet.rl.monitors.group import MonitorGroup as MonitorGroup
from whet.rl.monitors.protocol import Monitor as Monitor
from whet.rl.monitors.redaction import Redactor
from whet.system.redaction import redacted
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


class Tracked(Protocol):
    """The part of a run's config that trackers use."""

    @property
    def wandb(self) -> WandbConfig | None: ...
    @property
    def trackio(self) -> TrackioConfig | None: ...
    def model_dump(self, *, mode: str, exclude_none: bool, exclude: set[str]) -> dict[str, Any]: ...


def trackers(config: Tracked, redactor: Redactor) -> list[Monitor]:
    """One monitor for each of `[wandb]` and `[trackio]`; their libraries are imported here.

    Raises `MissingExtraError` where its library is not installed, `ConfigError` where it could not begin.
    """
    found: list[Monitor] = []
    if config.wandb is not None:
        from whet.rl.monitors.wandb import WandbMonitor

        found.append(WandbMonitor(config.wandb, _sent_config(config, redactor)))
    if config.trackio is not None:
        from whet.rl.monitors.trackio import TrackioMonitor

        found.append(TrackioMonitor(config.trackio, _sent_config(config, redactor)))
    return found


def _sent_config(config: Tracked, redactor: Redactor) -> dict[str, Any]:
    """The resolved config as trackers get it: without the names of secret files, and with no secret in it."""
    plain = config.model_dump(mode="json", exclude_none=True, exclude={"env_file"})
    sent: dict[str, Any] = redactor.data(redacted(plain))
    return sent
