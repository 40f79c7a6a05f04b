"""One run as its directory describes it: how far it came, and how to continue it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from whet.config import read_toml
from whet.records.directory import EVALS, RUN_CONFIG
from whet.records.lock import state_of
from whet.records.stored import (
    RUNS,
    StoredRun,
    as_far_as_possible,
    check_folder,
    environment_names,
    read_status,
    resolve,
)
from whet.rl.monitors.jsonl import read_evaluations
from whet.rl.monitors.protocol import EvalReport
from whet.rl.storage.checkpoints import checkpoints_in, fault_of
from whet.rl.storage.run_directory import RunDirectory
from whet.system.files import read_lines
from whet.system.untrusted import open_path


@dataclass(frozen=True, slots=True)
class StoredTraining(StoredRun):
    """A directory of `whet train run` or `whet train sft`."""

    @property
    def imitates(self) -> str | None:
        """Of a run of `whet train sft`: the conversations that it learns from; None for reinforcement learning."""
        data = self.config.get("data")
        return str(data.get("path") or data.get("dataset")) if isinstance(data, Mapping) else None

    @property
    def environments(self) -> list[str]:
        """Those that are trained on, by their names in metrics; none where it imitates conversations."""
        return environment_names(self.config)

    @property
    def step(self) -> int:
        return int(self.status.get("step") or 0)

    @property
    def max_steps(self) -> int | None:
        steps = self.config.get("max_steps") or self.status.get("max_steps")
        return None if steps is None else int(steps)

    @property
    def when(self) -> str:
        """When it ended, or last gave a sign, in local time."""
        try:
            last = datetime.fromisoformat(str(self.status.get("ended") or self.status["heartbeat"]))
        except (KeyError, ValueError):
            last = datetime.fromtimestamp((self.directory / RUN_CONFIG).stat().st_mtime).astimezone()
        return last.astimezone().replace(tzinfo=None).isoformat(sep=" ", timespec="minutes")

    @property
    def resume(self) -> str | None:
        """The command that continues it, where there is something to continue."""
        return f"whet train resume {self.directory}" if self.resumable else None

    def metrics(self, ends: int | None = None) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl with a step; `ends` as in `read_lines`. Raises `RunError` for a damaged one."""
        path = RunDirectory(self.directory).metrics
        return [row for row in read_lines(path, ends) if isinstance(row.get("step"), int)] if path.is_file() else []

    def evaluations(self) -> list[EvalReport]:
        return read_evaluations(self.directory / EVALS)

    def checkpoints(self) -> list[tuple[int, str | None]]:
        """(step, why it cannot be trusted or None), oldest first. Every file is read and hashed."""
        checkpoints = checkpoints_in(RunDirectory(self.directory).checkpoints)
        return [(one.step, fault_of(one.path)) for one in reversed(checkpoints)]


def open_run(run: str | Path) -> StoredTraining:
    """The run in a directory, or of that name below runs/. Raises `RunError` where there is none."""
    return _read(resolve(run, _is_run, noun="run", made="with a config.toml", commands="whet train"))


def find_runs(folder: Path = RUNS) -> list[StoredTraining]:
    """The runs directly below a folder, the latest sign of life first.

    One whose config or status cannot be read has a `fault` instead of them. Raises `RunError` where there is no such
    folder.
    """
    check_folder(folder, "whet train")
    runs = [_read_as_far_as_possible(path.parent) for path in folder.glob("*/config.toml") if path.is_file()]
    return sorted(runs, key=lambda run: run.when, reverse=True)


def _is_run(path: Path) -> bool:
    return (path / RUN_CONFIG).is_file()


def _read_as_far_as_possible(path: Path) -> StoredTraining:
    def read() -> StoredTraining:
        run = _read(path)
        _ = run.step, run.max_steps, run.when, run.imitates  # what the list says of it, from values of any kind
        return run

    return as_far_as_possible(path, read, lambda why: StoredTraining(path, {}, {}, "unreadable", fault=why))


def _read(path: Path) -> StoredTraining:
    status = read_status(path)
    return StoredTraining(path, read_toml(path / RUN_CONFIG, open_path), status, state_of(path, status))
