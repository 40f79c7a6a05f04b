"""Going on with a run that is known by its directory: `whet train resume RUN [--step N]`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whet.errors import RunError
from whet.rl.config import RunConfig, load_run_config
from whet.rl.monitors.protocol import Outcome


def config_of_run(run: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The config a run was started with, `--key value` overrides on top, wherever its directory lies now.

    Raises `RunError` where `run` is not the directory of a run, and `ConfigError` for a config that does not make sense.
    """
    run = run.resolve()
    if not (run / "config.toml").is_file():
        raise RunError(f"{run} is not a run: it has no config.toml. Give a directory such as runs/my-run.")
    place = ["--name", run.name, "--runs_directory", str(run.parent)]
    return load_run_config(run / "config.toml", [*place, *overrides])


def resume_run(
    run: Path, *, step: int | None = None, overrides: Sequence[str] = (), json_output: bool = False
) -> Outcome:
    """Go on from the newest checkpoint that verifies, or from that of `step`.

    What the run did after a chosen `step` is kept in its `set_aside/`. Raises what `config_of_run` and
    `whet.rl.run.run_training` raise, and `RunError` where there is no such checkpoint.
    """
    from whet.rl.run import run_training

    return run_training(config_of_run(run, overrides), resume=True, step=step, json_output=json_output)
