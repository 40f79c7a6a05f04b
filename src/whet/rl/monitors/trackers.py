"""Experiment trackers: what those of other libraries have in common, and which of them a config names."""

from __future__ import annotations

import importlib
import io
import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

from whet.errors import MissingExtraError
from whet.rl.monitors.protocol import EvalReport, Monitor, Outcome, RunPlan, StepReport, evaluation_metrics
from whet.system.redaction import Redactor, redacted

if TYPE_CHECKING:
    from whet.rl.config import RunConfig
    from whet.rl.sft.config import SftConfig

logger = logging.getLogger(__name__)


class Tracker(Monitor):
    """One run of a tracking library, from `start` to `ended`."""

    def __init__(self, library: str, what: str, settings: dict[str, Any]) -> None:
        """`settings` is the run's config as it is sent. Raises `MissingExtraError` where `library` is not installed."""
        try:
            with quietly():
                self.library: Any = importlib.import_module(library)
        except ModuleNotFoundError as error:
            if error.name != library:
                raise
            raise MissingExtraError(f"tracking with {what}", library) from error
        self.settings = settings
        self.run: Any = None

    @abstractmethod
    def begin(self, plan: RunPlan) -> Any:
        """Start the library's run, or continue it where `plan` resumes one."""

    @abstractmethod
    def send(self, step: int, values: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def finish(self, outcome: Outcome) -> None: ...

    def start(self, plan: RunPlan) -> None:
        with quietly():
            self.run = self.begin(plan)

    def step(self, report: StepReport) -> None:
        self.send(report.step, report.metrics)

    def evaluation(self, report: EvalReport) -> None:
        self.send(report.step, evaluation_metrics(report))

    def ended(self, outcome: Outcome) -> None:
        if self.run is not None:
            with quietly():
                self.finish(outcome)


@contextmanager
def quietly() -> Iterator[None]:
    """Lines that a library prints inside become debug messages, not text in the terminal."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            yield
    finally:
        for line in filter(None, map(str.strip, printed.getvalue().splitlines())):
            logger.debug("%s", line)


def trackers(config: RunConfig | SftConfig, redactor: Redactor) -> list[Monitor]:
    """One monitor for each of `[wandb]` and `[trackio]`; their libraries are imported here.

    Raises `MissingExtraError` where its library is not installed, `ConfigError` where it could not begin.
    """
    monitors: list[Monitor] = []
    if config.wandb is not None:
        from whet.rl.monitors.wandb import WandbMonitor

        monitors.append(WandbMonitor(config.wandb, _sent_config(config, redactor)))
    if config.trackio is not None:
        from whet.rl.monitors.trackio import TrackioMonitor

        monitors.append(TrackioMonitor(config.trackio, _sent_config(config, redactor)))
    return monitors


def _sent_config(config: RunConfig | SftConfig, redactor: Redactor) -> dict[str, Any]:
    """The resolved config as trackers get it: without the names of secret files, and with no secret in it."""
    plain = config.model_dump(mode="json", exclude_none=True, exclude={"env_file"})
    sent: dict[str, Any] = redactor.data(redacted(plain))
    return sent
