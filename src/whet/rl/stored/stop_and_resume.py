"""Stop a run in another process and wait for its end; resume a run by its directory."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from whet.config import read_toml
from whet.errors import RunError
from whet.rl.config import RunConfig, load_run_config
from whet.rl.monitors.protocol import Outcome
from whet.rl.sft.config import SftConfig, load_sft_config
from whet.rl.stored.stored_run import ENDED, StoredRun, open_run
from whet.rl.supervision.processes import began
from whet.rollouts.row_log import is_locked
from whet.system.redaction import redacted_keys

LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class StoppedRun:
    """How a run ended after `stop_run`."""

    run: Path
    state: str
    step: int
    checkpoint: int | None  # newest step that can be continued
    message: str
    resume: str | None


def stop_run(run: StoredRun, *, patience: float, clock: Callable[[], float] = time.monotonic) -> StoppedRun:
    """Send SIGTERM to the run's process, once it is identified, and wait up to `patience` seconds for its end.

    Raises `RunError` where there is nothing to stop, the process cannot be identified, or it does not end in time.
    """
    pid = _process_of(run)
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise RunError(f"{run.path}: process {pid} belongs to another user; stop it as that user.") from None
    deadline = clock() + patience
    while is_locked(run.path):
        if clock() >= deadline:
            raise RunError(
                f"{run.path}: process {pid} was sent a stop signal {patience:.0f} s ago and still runs. It stops by "
                f"itself; to end it now: kill -9 {pid} (what was trained since the last checkpoint is trained again)."
            )
        time.sleep(LOOK_SECONDS)
    ended = open_run(run.path)
    good = [step for step, fault in ended.checkpoints() if fault is None]
    return StoppedRun(
        run.path,
        ended.state,
        ended.step,
        max(good, default=None),
        str(ended.status.get("last_error") or f"{ended.state} after step {ended.step} of {ended.max_steps}"),
        ended.resume,
    )


def _process_of(run: StoredRun) -> int:
    """The id of the process that trains in the run's directory."""
    if run.state in ENDED or not is_locked(run.path):
        how = f" Go on with it: {run.resume}" if run.resume else ""
        raise RunError(f"{run.path} is not running: its state is {run.state}.{how}")
    pid, host, started = (run.status.get(name) for name in ("pid", "host", "process_began"))
    if host not in (None, socket.gethostname()):
        raise RunError(f"{run.path} runs on {host}: stop it there.")
    if not isinstance(pid, int) or started is None or began(pid) != started:
        raise RunError(
            f"{run.path} is in use, but not by the process that its status.json names ({pid}); so none is sent a "
            "signal. Stop the one that uses it yourself: its number is in the run's .lock file."
        )
    return pid


def config_of_run(run: Path, overrides: Sequence[str] = ()) -> RunConfig | SftConfig:
    """The config a run was started with, `--key value` overrides on top, wherever its directory is now.

    Raises `RunError` where `run` is not the directory of a run, and `ConfigError` for an invalid config.
    """
    run = run.resolve()
    if not (run / "config.toml").is_file():
        raise RunError(f"{run} is not a run: it has no config.toml. Give a directory such as runs/my-run.")
    location = ["--name", run.name, "--runs_directory", str(run.parent)]
    saved = read_toml(run / "config.toml")
    for name in redacted_keys(saved):
        raise RunError(
            f"{run / 'config.toml'}: {name} was saved without its secret. Resume with the config that the run was "
            "begun with: whet train run CONFIG --resume."
        )
    load = load_sft_config if "data" in saved else load_run_config
    return load(run / "config.toml", [*location, *overrides])


def resume_run(
    run: Path, *, step: int | None = None, overrides: Sequence[str] = (), json_output: bool = False
) -> Outcome:
    """Resume from the newest checkpoint that verifies, or from that of `step`.

    What the run did after a chosen `step` is kept in its `set_aside/`. Raises what `config_of_run` and
    `whet.rl.run.run_training` (or `whet.rl.sft.run.run_sft`) raise, and `RunError` where there is no such checkpoint.
    """
    config = config_of_run(run, overrides)
    if isinstance(config, SftConfig):
        from whet.rl.sft.run import run_sft

        return run_sft(config, resume=True, step=step, json_output=json_output)
    from whet.rl.run import run_training

    return run_training(config, resume=True, step=step, json_output=json_output)
