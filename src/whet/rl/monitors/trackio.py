"""`[trackio]`: the numbers of a run in trackio, kept on this machine. `trackio show` shows them in a browser.

The library keeps its files where TRACKIO_DIR says, else in its own cache. Which of its runs this one is stands in the
run's directory, so that a resumed run continues the same one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from whet.errors import RunError
from whet.rl.monitors.config import TrackioConfig
from whet.rl.monitors.protocol import Outcome, RunPlan
from whet.rl.monitors.trackers import Tracker
from whet.system.files import json_line, write_whole

RUN = "trackio.json"
"""Below the run's directory: {"project": ..., "name": ..., "id": ...}."""


class TrackioMonitor(Tracker):
    def __init__(self, config: TrackioConfig, settings: dict[str, Any]) -> None:
        super().__init__("trackio", "trackio", settings)
        self._config = config

    def begin(self, plan: RunPlan) -> Any:
        """Raises `RunError` where another run has taken a resumed run's name."""
        kept = plan.directory / RUN
        known = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else None
        project = known["project"] if known else self._config.project
        name = known["name"] if known else self._config.name or plan.name
        run = self.library.init(
            project=project,
            name=name,
            group=self._config.group,
            config=self.settings,
            resume="allow" if known else "never",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
        if known and run.id != known["id"]:
            run.finish()
            raise RunError(
                f"trackio's newest run {name!r} of project {project!r} is another one; remove {kept} to begin anew"
            )
        write_whole(kept, json_line({"project": project, "name": run.name, "id": run.id}))
        return run

    def send(self, step: int, values: Mapping[str, Any]) -> None:
        self.run.log(dict(values), step=step)

    def finish(self, outcome: Outcome) -> None:
        self.run.log({"outcome": outcome.state}, step=outcome.step)
        self.library.finish()  # of the library, so that it does not end the run once more when the process ends
