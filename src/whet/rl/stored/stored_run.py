"""One run as its directory describes it: how far it came, how to stop it, how to continue it."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from whet.config import read_toml
from whet.errors import RunError
from whet.records.directory import EVALS, RUN_CONFIG
from whet.records.lock import ENDED, is_locked, state_of
from whet.records.stored import (
    RUNS,
    StoredRun,
    as_far_as_possible,
    check_folder,
    environment_names,
    read_status,
    resolve,
)
from whet.rl.config import RunConfig, load_run_config
from whet.rl.monitors.jsonl import read_evaluations
from whet.rl.monitors.protocol import EvalReport, Outcome
from whet.rl.sft.config import SftConfig, load_sft_config
from whet.rl.storage.checkpoints import checkpoints_in, fault_of
from whet.rl.storage.run_directory import RunDirectory
from whet.system.children import is_alive
from whet.system.files import read_lines
from whet.system.redaction import redacted_keys
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
    def owner(self) -> str | None:
        """Of a model of `whet tinker serve`: whose it is; its loop is that user's program."""
        model = self.config.get("tinker")
        return str(model.get("owner")) if isinstance(model, Mapping) else None

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
        return f"whet train resume {self.directory}" if self.resumable and self.owner is None else None

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


# Stop a run in another process and wait for its end; resume a run by its directory.

POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class StoppedRun:
    """How a run ended after `stop_run`."""

    run: Path
    state: str
    step: int
    checkpoint: int | None  # newest step that can be continued
    message: str
    resume: str | None


def stop_run(run: StoredTraining, *, patience: float) -> StoppedRun:
    """Stop the run's process and wait up to `patience` seconds for its end.

    Raises `RunError` where there is nothing to stop, the process cannot be identified, or it does not end in time.
    """
    if run.state in ENDED or not is_locked(run.directory):
        how = f" Continue it: {run.resume}" if run.resume else ""
        raise RunError(f"{run.directory} is not running: its state is {run.state}.{how}")
    if run.owner is not None:
        raise RunError(f"{run.directory} is a model of `whet tinker serve`: stop its client's program, or that server.")
    stop_process(run.directory, run.status, patience=patience)
    ended = open_run(run.directory)
    good = [step for step, fault in ended.checkpoints() if fault is None]
    return StoppedRun(
        run.directory,
        ended.state,
        ended.step,
        max(good, default=None),
        str(ended.status.get("last_error") or f"{ended.state} after step {ended.step} of {ended.max_steps}"),
        ended.resume,
    )


def stop_process(
    directory: Path, status: Mapping[str, Any], *, patience: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """Send SIGTERM to the process that runs in `directory`, once it is identified, and wait for its end.

    `status` has the fields of `this_process`. Raises `RunError` where the process cannot be identified, or has not
    ended after `patience` seconds.
    """
    pid, host = status.get("pid"), status.get("host")
    if host not in (None, socket.gethostname()):
        raise RunError(f"{directory} runs on {host}: stop it there.")
    if not isinstance(pid, int) or not is_alive(status):
        raise RunError(
            f"{directory} is in use, but not by the process that its status.json names ({pid}); so none is sent a "
            "signal. Stop the one that uses it yourself: its number is in the run's .lock file."
        )
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise RunError(f"{directory}: process {pid} belongs to another user; stop it as that user.") from None
    deadline = clock() + patience
    while is_locked(directory):
        if clock() >= deadline:
            raise RunError(
                f"{directory}: process {pid} was sent a stop signal {patience:.0f} s ago and still runs. It stops by "
                f"itself; to end it now: kill -9 {pid} (what was trained since the last checkpoint is trained again)."
            )
        time.sleep(POLL_SECONDS)


def config_of_run(run: Path, overrides: Sequence[str] = ()) -> RunConfig | SftConfig:
    """The config a run was started with, `--key value` overrides on top, wherever its directory is now.

    Raises `RunError` where `run` is not the directory of a run, and `ConfigError` for an invalid config.
    """
    run = run.resolve()
    if not (run / RUN_CONFIG).is_file():
        raise RunError(f"{run} is not a run: it has no config.toml. Give a directory such as runs/my-run.")
    location = ["--name", run.name, "--runs_directory", str(run.parent)]
    saved = read_toml(run / RUN_CONFIG)
    if "tinker" in saved:
        raise RunError(
            f"{run} is a model of `whet tinker serve`: start that again, and its client's program continues."
        )
    for name in redacted_keys(saved):
        raise RunError(
            f"{run / RUN_CONFIG}: {name} was saved without its secret. Resume with the config that the run was "
            "begun with: whet train run CONFIG --resume."
        )
    load = load_sft_config if "data" in saved else load_run_config
    return load(run / RUN_CONFIG, [*location, *overrides])


def resume_run(
    run: Path, *, step: int | None = None, overrides: Sequence[str] = (), json_output: bool = False
) -> Outcome:
    """Resume from the newest checkpoint that verifies, or from that of `step`.

    What the run did after a chosen `step` is archived in its `set_aside/`. Raises what `config_of_run` and
    `whet.rl.run.run_training` (or `whet.rl.sft.run.run_sft`) raise, and `RunError` where there is no such checkpoint.
    """
    config = config_of_run(run, overrides)
    if isinstance(config, SftConfig):
        from whet.rl.sft.run import run_sft

        return run_sft(config, resume=True, step=step, json_output=json_output)
    from whet.rl.run import run_training

    return run_training(config, resume=True, step=step, json_output=json_output)
