"""`[wandb]`: the numbers of a run in Weights & Biases, online or as files that `wandb sync` sends later.

Metrics have the names of docs/training.md, over `step` (so that steps that a resumed run repeats are not refused), and
the scores of evaluations with them. The run's id is kept in its directory, so that a resumed run continues the
same W&B run. The key is read from WANDB_API_KEY by the library and nowhere else; code, console and git are not sent.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whet.errors import ConfigError
from whet.messages import readable_text
from whet.rl.monitors.config import WandbConfig
from whet.rl.monitors.protocol import Outcome, RunPlan, StepReport
from whet.rl.monitors.trackers import Tracker
from whet.system.files import write_whole

KEY = "WANDB_API_KEY"
RUN_ID = Path("wandb", "run_id")
"""Where the id is stored, below the run's directory; the library's own files are in the same directory."""
PATIENCE = 60
"""Seconds that W&B may take to begin a run, and to send what is left at its end."""

SAMPLE_COLUMNS = ("step", "environment", "prompt", "completion", "reward", "advantage")
EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 130}


class WandbMonitor(Tracker):
    def __init__(self, config: WandbConfig, settings: dict[str, Any]) -> None:
        """Raises `ConfigError` without a key."""
        super().__init__("wandb", "Weights & Biases", settings)
        self._config = config
        self._mode: Any = "offline" if config.offline else os.environ.get("WANDB_MODE") or "online"
        if self._mode in ("online", "shared") and not os.environ.get(KEY):
            raise ConfigError(
                f"[wandb] needs the environment variable {KEY} (in the shell, or in a file named by env_file). "
                "Without a key, set wandb.offline = true: the files can be sent later."
            )

    def begin(self, plan: RunPlan) -> Any:
        config = self._config
        run = self.library.init(
            project=config.project,
            name=config.name or plan.name,
            entity=config.entity,
            group=config.group,
            tags=list(config.tags) or None,
            config={**self.settings, "parameters": plan.parameters, "trained_parameters": plan.trained_parameters},
            id=_run_id(plan.directory / RUN_ID),
            resume="allow",
            mode=self._mode,
            dir=str(plan.directory),
            settings=self.library.Settings(
                console="off",
                silent=True,
                save_code=False,
                disable_git=True,
                init_timeout=PATIENCE,
                finish_timeout=PATIENCE,
            ),
        )
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        return run

    def step(self, report: StepReport) -> None:
        values: dict[str, Any] = dict(report.metrics)
        every = self._config.samples_every
        if every and report.step % every == 0 and report.sample is not None:
            values["samples"] = self.library.Table(list(SAMPLE_COLUMNS), [_sample_row(report.step, report.sample)])
        self.send(report.step, values)

    def send(self, step: int, values: Mapping[str, Any]) -> None:
        self.run.log({"step": step, **values})

    def finish(self, outcome: Outcome) -> None:
        self.run.summary.update({"outcome": outcome.state, "outcome_step": outcome.step})
        if outcome.state != "finished":
            self.run.summary["outcome_message"] = outcome.message
        self.run.finish(exit_code=EXIT_CODES[outcome.state])


def _run_id(path: Path) -> str:
    """The id of this run directory, made on first use."""
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        made = secrets.token_hex(4)
        write_whole(path, f"{made}\n")
        return made


def _sample_row(step: int, row: dict[str, Any]) -> list[Any]:
    texts = [_text(row.get(part)) for part in ("prompt", "completion")]
    return [step, row.get("environment"), *texts, row.get("reward"), row.get("advantage")]


def _text(messages: Any) -> str:
    if isinstance(messages, str):
        return messages
    return "\n".join(f"{message['role']}: {readable_text(message.get('content'))}" for message in messages or [])
