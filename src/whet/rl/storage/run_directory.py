"""The run directory of training: where each of its files is, and whether a config may resume in it.

Making the directory is refused when it exists. Resuming is refused when the config differs in anything that would
change what is trained, and the message says exactly in what.

`environments.json` of a run: which environments it trains on and evaluates with, by their names in metrics.

A resumed run trains on the same environments, or it would be another run.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from whet.config import read_toml, validate
from whet.envs.identity.record import changed_fields, identify, identity_differences
from whet.errors import RunError
from whet.records.differences import differences, refuse
from whet.records.directory import ERRORS, LEDGER, METRICS, RUN_CONFIG, STATUS, OwnedDirectory
from whet.rl.monitors.protocol import EvalReport, Monitor, Outcome, RunPlan, StepReport
from whet.rl.sections.inference import NEUTRAL
from whet.rl.sections.training import TrainingConfig, TrainingEnvConfig
from whet.rl.supervision.watchdog import STALLED
from whet.rollouts.row_log import write_rows
from whet.system.children import this_process
from whet.system.files import json_line, write_whole
from whet.system.redaction import redacted

ConfigT = TypeVar("ConfigT", bound=TrainingConfig)

FREE_ON_RESUME = (
    "name",
    "runs_directory",
    "env_file",
    "eval",
    "checkpointing",
    "deployment",
    "max_concurrent",
    "max_retries",
    "buffer.max_errored_groups",
    "workers_per_env",
    "wandb",
    "trackio",
    "budget",
    "early_stop",
    "watchdog",
    "learner.device",
    "learner.ranks",
    "learner.rank_timeout_seconds",
    "learner.max_restarts",
    "inference.device",
    "inference.engine",
    *(f"inference.{key}" for key in NEUTRAL if key != "max_model_len"),
)
"""Keys that may differ on resume: they change neither what is sampled nor what is learned. So may `max_steps` grow."""


LENGTH = ("max_steps", "num_epochs")
"""Keys that say when a run ends. They may differ where nothing that was done so far depends on them."""


class RunDirectory(OwnedDirectory):
    """`runs/<name>/`, locked by this process from `open` to `close`."""

    doing = "training in"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.config = path / RUN_CONFIG
        self.status = path / STATUS
        self.metrics = path / METRICS
        self.errors = path / ERRORS
        self.rollouts = path / "rollouts"
        self.checkpoints = path / "checkpoints"
        self.adapters = path / "adapters"
        self.model = path / "model"
        self.ledger = path / LEDGER
        self.logs = path / "logs"

    def check(self, config: TrainingConfig, *, resume: bool) -> None:
        """Whether `open` would be refused, found out before anything expensive is loaded. Raises `RunError`."""
        if not resume:
            if self.path.exists():
                raise RunError(
                    f"{self.path} already exists. Continue it with --resume, or choose another name: "
                    f"--name {self.path.name}-2 (--name auto takes the first free one)."
                )
            return
        if not self.config.is_file():
            raise RunError(f"{self.path} is not a run: {self.config} is missing. Start it without --resume.")
        began = began_with(self.path, type(config))
        refuse(config_differences(began, config), f"{self.path} was started with another config:")

    def open(self, config: TrainingConfig, *, resume: bool) -> None:
        """Make the directory, or take an existing one to resume in, and lock it. Raises `RunError`."""
        self.check(config, resume=resume)
        with self._taken(resume=resume):
            write_whole(self.config, config.to_toml())


def began_with(directory: Path, kind: type[ConfigT]) -> ConfigT:
    """The config that a run began with; a key that it lacks has its default. Raises `ConfigError`."""
    file = directory / RUN_CONFIG
    return validate(kind, read_toml(file), str(file))


def config_differences(began: TrainingConfig, config: TrainingConfig) -> list[str]:
    """What would make a resumed run another run, a line each; empty when there is nothing."""
    lines = []
    before, now = (redacted(one.model_dump(mode="json", exclude_none=True)) for one in (began, config.settled(began)))
    for path, (old, new) in differences(before, now).items():
        why = ""
        if path in LENGTH:
            if config.optimizer.schedule == "constant":
                continue
            why = ", and optimizer.schedule depends on it"
        if not any(path == free or path.startswith(f"{free}.") for free in FREE_ON_RESUME):
            lines.append(f"{path}: was {old!r}, is {new!r}{why}")
    return lines


FILE = "environments.json"
TRAINED, EVALUATED = "trained", "evaluated"

Identities = dict[str, dict[str, dict[str, Any]]]


def identities_of(trained: Iterable[TrainingEnvConfig], evaluated: Iterable[TrainingEnvConfig]) -> Identities:
    """The identities of environments that were loaded."""
    return {
        kind: {one.label: identify(one.id).as_dict() for one in sections}
        for kind, sections in ((TRAINED, trained), (EVALUATED, evaluated))
    }


def read_identities(run: Path) -> Identities | None:
    """What the run recorded; None for one that began before runs did. Raises `RunError` for a damaged file."""
    try:
        identities: Identities = json.loads((run / FILE).read_text(encoding="utf-8"))
        return {kind: {name: dict(one) for name, one in identities[kind].items()} for kind in (TRAINED, EVALUATED)}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{run / FILE} cannot be read ({error}). Remove it to resume without a comparison.") from None


def check_identities(run: Path, now: Identities) -> None:
    """Raise `RunError` where an environment that the run trains on is not the one that it began with."""
    before = read_identities(run)
    if before is None:
        return
    refuse(
        [f"{name}: {line}" for name, line in _differences(before[TRAINED], redacted(now)[TRAINED])],
        f"--resume: {run} was trained on other environments:",
        "Install or restore what it had, or begin another run from its weights "
        f'(model = "{run / "checkpoints"}/step_N" in the config).',
    )


def write_identities(run: Path, now: Identities) -> None:
    write_whole(run / FILE, json.dumps(redacted(now), indent=2) + "\n")


def environment_differences(a: Path, b: Path) -> dict[str, tuple[Any, Any]]:
    """Path -> (a, b) of what differs in the environments that two runs trained on, where both recorded them."""
    first, second = read_identities(a), read_identities(b)
    if first is None or second is None:
        return {}
    return {
        f"environments.{name}.{key}": (one[name].get(key), other[name].get(key))
        for one, other in [(first[TRAINED], second[TRAINED])]
        for name in sorted(one.keys() & other.keys())
        for key in changed_fields(one[name], other[name])
    }


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name in sorted(before.keys() & now.keys()):  # others are differences of the config
        for line in identity_differences(before[name], now[name]):
            yield name, line


# Every trained and every evaluated rollout, on disk: messages, sampled tokens, rewards.
#
#     rollouts/step_000001.jsonl     the rollouts of step 1, whole groups one after the other
#     rollouts/eval_before.jsonl     held-out tasks before training; also eval_after, eval_step_000050
#
# A file is whole or absent: it is written under another name and renamed. `rollouts/token_rows.py` describes a row.
# Evaluated rollouts also have the way in which they were sampled (`sampling`).


def step_path(directory: Path, step: int) -> Path:
    return directory / f"step_{step:06}.jsonl"


def evaluation_path(directory: Path, moment: str, step: int) -> Path:
    return directory / (f"eval_step_{step:06}.jsonl" if moment == "during" else f"eval_{moment}.jsonl")


def write_step(directory: Path, step: int, rows: Iterable[Mapping[str, Any]]) -> Path:
    """The rollouts of one trained step."""
    return write_rows(step_path(directory, step), rows)


def write_evaluation(directory: Path, report: EvalReport) -> Path:
    """All rollouts of one evaluation, each with the way in which it was sampled."""
    rows = ({**row, "sampling": score.sampling} for score in report.scores for row in score.rows)
    return write_rows(evaluation_path(directory, report.moment, report.step), rows)


# `status.json`: what a run is doing, for programs that look at it from outside.
#
#     {"state": "running", "step": 12, "max_steps": 100, "phase": "generate", "heartbeat": "2026-...", "pid": 4711, ...}
#
# `state` is starting, running, finished, interrupted or failed. A run whose state says running while no process holds
# the lock of its directory was killed: `whet train list` calls it died. `stalled` is what the run waits for too long,
# until its next step. Every write replaces the whole file. Nothing reads it to decide anything about training:
# `--resume` goes by the checkpoints.

HEARTBEAT_SECONDS = 2.0
"""Least time between two writes whose only news is that the run is alive."""
MOST_STALLS = 3
"""Reports of a wait that are kept: what waits for what, and what that waits for."""


class Status(Monitor):
    """A monitor that keeps `status.json` up to date, from its making to `close`."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._lock = (
            threading.RLock()
        )  # the watchdog's thread, or a signal's handler, may close it while the run writes
        self._written = float("-inf")
        self._fields: dict[str, Any] = {"state": "starting", "step": 0, "last_error": None} | this_process()
        self._write()

    def start(self, plan: RunPlan) -> None:
        self._fields |= {
            "state": "running",
            "name": plan.name,
            "model": plan.model,
            "step": plan.first_step - 1,
            "max_steps": plan.max_steps,
            "started": _now(),
        }
        self._write()

    def phase(self, name: str, done: int, total: int) -> None:
        self._fields |= {"phase": name, "phase_done": done, "phase_total": total}
        self._beat()

    def step(self, report: StepReport) -> None:
        self._fields |= {"step": report.step, "failures": report.failures}
        self._stalled_no_more()

    def rewound(self, step: int) -> None:
        self._fields["step"] = step
        self._write()

    def evaluation(self, report: EvalReport) -> None:
        self._stalled_no_more()

    def note(self, text: str) -> None:
        self._fields["last_note"] = text
        if text.startswith(STALLED):
            lines = [*self._fields.get("stalled", ()), text.removeprefix(STALLED)]
            self._fields["stalled"] = lines[-MOST_STALLS:]
            self._write()
        else:
            self._beat()

    def ended(self, outcome: Outcome) -> None:
        for name in ("phase", "phase_done", "phase_total", "stalled"):
            self._fields.pop(name, None)
        self._fields |= {
            "state": outcome.state,
            "step": outcome.step,
            "last_error": outcome.message if outcome.state == "failed" else None,
            "ended": _now(),
        }
        self._write()

    def _stalled_no_more(self) -> None:
        """There is progress again."""
        if self._fields.pop("stalled", None) is not None:
            self._write()
        else:
            self._beat()

    def _beat(self) -> None:
        if self._clock() - self._written >= HEARTBEAT_SECONDS:
            self._write()

    def _write(self) -> None:
        self._written = self._clock()
        with self._lock:
            write_whole(self.path, json_line({**self._fields, "heartbeat": _now()}), durable=False)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
