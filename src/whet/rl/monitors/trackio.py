"""`[trackio]`: the numbers of a run in trackio, kept on this machine. `trackio show` shows them in a browser.

The library keeps its files where TRACKIO_DIR says, else in its own cache. Which of its runs this one is stands in the
run's directory, so that a resumed run continues the same one.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from whet.errors import MissingExtraError, RunError
from whet.rl.monitors.config import TrackioConfig
from whet.rl.monitors.log import quietly
from whet.rl.monitors.protocol import EvalReport, Monitor, Outcome, RunPlan, StepReport, evaluation_metrics
from whet.system.files import json_line, write_whole

RUN = "trackio.json"
"""Below the run's directory: {"project": ..., "name": ..., "id": ...}."""

logger = logging.getLogger(__name__)


class TrackioMonitor(Monitor):
    """One trackio run from `start` to `close`."""

    def __init__(self, config: TrackioConfig, settings: dict[str, Any]) -> None:
        """`settings` is the run's config as it is kept. Raises `MissingExtraError`."""
        try:
            with quietly(logger):
                import trackio
        except ModuleNotFoundError as error:
            if error.name != "trackio":
                raise
            raise MissingExtraError("tracking with trackio", "trackio") from error
        self._trackio = trackio
        self._config = config
        self._settings = settings
        self._run: Any = None

    def start(self, plan: RunPlan) -> None:
        """Raises `RunError` where another run has taken a resumed run's name."""
        kept = plan.directory / RUN
        known = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else None
        project = known["project"] if known else self._config.project
        name = known["name"] if known else self._config.name or plan.name
        with quietly(logger):
            run = self._trackio.init(
                project=project,
                name=name,
                group=self._config.group,
                config=self._settings,
                resume="allow" if known else "never",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )
        if known and run.id != known["id"]:
            with quietly(logger):
                run.finish()
            raise RunError(
                f"trackio's newest run {name!r} of project {project!r} is another one; remove {kept} to begin anew"
            )
        self._run = run
        write_whole(kept, json_line({"project": project, "name": run.name, "id": run.id}))

    def step(self, report: StepReport) -> None:
        self._run.log(dict(report.metrics), step=report.step)

    def evaluation(self, report: EvalReport) -> None:
        self._run.log(evaluation_metrics(report), step=report.step)

    def ended(self, outcome: Outcome) -> None:
        if self._run is None:
            return
        with quietly(logger):
            self._run.log({"outcome": outcome.state}, step=outcome.step)
            self._trackio.finish()  # of the library, so that it does not end the run once more when the process ends
