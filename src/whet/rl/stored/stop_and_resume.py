"""Stop a run in another process and wait for its end; resume a run by its directory."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.config import read_toml
from whet.errors import RunError
from whet.records.directory import RUN_CONFIG
from whet.records.lock import ENDED, is_locked
from whet.rl.config import RunConfig, load_run_config
from whet.rl.monitors.protocol import Outcome
from whet.rl.sft.config import SftConfig, load_sft_config
from whet.rl.stored.stored_run import StoredTraining, open_run
from whet.system.children import is_alive
from whet.system.redaction import redacted_keys

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
