"""Which experiment trackers a run has. Their libraries are imported here, before anything else of a run is made."""

from __future__ import annotations

from typing import Any, Protocol

from whet.rl.monitors.config import TrackioConfig, WandbConfig
from whet.rl.monitors.protocol import Monitor
from whet.rl.monitors.redaction import Redactor
from whet.system.redaction import redacted


class Tracked(Protocol):
    """What of a run's config trackers go by."""

    @property
    def wandb(self) -> WandbConfig | None: ...
    @property
    def trackio(self) -> TrackioConfig | None: ...
    def model_dump(self, *, mode: str, exclude_none: bool, exclude: set[str]) -> dict[str, Any]: ...


def trackers(config: Tracked, redactor: Redactor) -> list[Monitor]:
    """One monitor for each of `[wandb]` and `[trackio]`.

    Raises `MissingExtraError` where its library is not installed, `ConfigError` where it could not begin.
    """
    found: list[Monitor] = []
    if config.wandb is not None:
        from whet.rl.monitors.wandb import WandbMonitor

        found.append(WandbMonitor(config.wandb, _told(config, redactor)))
    if config.trackio is not None:
        from whet.rl.monitors.trackio import TrackioMonitor

        found.append(TrackioMonitor(config.trackio, _told(config, redactor)))
    return found


def _told(config: Tracked, redactor: Redactor) -> dict[str, Any]:
    """The resolved config as trackers get it: without the names of secret files, and with no secret in it."""
    plain = config.model_dump(mode="json", exclude_none=True, exclude={"env_file"})
    told: dict[str, Any] = redactor.data(redacted(plain))
    return told
