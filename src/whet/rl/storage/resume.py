"""Going on with a run that is known by its directory: `whet train resume RUN [--step N]`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whet.config import read_toml
from whet.errors import RunError
from whet.rl.config import RunConfig, load_run_config
from whet.rl.monitors.protocol import Outcome
from whet.rl.sft.config import SftConfig, load_sft_config
from whet.system.redaction import redacted_keys


def config_of_run(run: Path, overrides: Sequence[str] = ()) -> RunConfig | SftConfig:
    """The config a run was started with, `--key value` overrides on top, wherever its directory lies now.

    Raises `RunError` where `run` is not the directory of a run, and `ConfigError` for a config without sense.
    """
    run = run.resolve()
    if not (run / "config.toml").is_file():
        raise RunError(f"{run} is not a run: it has no config.toml. Give a directory such as runs/my-run.")
    place = ["--name", run.name, "--runs_directory", str(run.parent)]
    saved = read_toml(run / "config.toml")
    for name in redacted_keys(saved):
        raise RunError(
            f"{run / 'config.toml'}: {name} was saved without its secret. Resume with the config that the run was "
            "begun with: whet train run CONFIG --resume."
        )
    load = load_sft_config if "data" in saved else load_run_config
    return load(run / "config.toml", [*place, *overrides])


def resume_run(
    run: Path, *, step: int | None = None, overrides: Sequence[str] = (), json_output: bool = False
) -> Outcome:
    """Go on from the newest checkpoint that verifies, or from that of `step`.

    What the run did after a chosen `step` is kept in its `set_aside/`. Raises what `config_of_run` and
    `whet.rl.run.run_training` (or `whet.rl.sft.run.run_sft`) raise, and `RunError` where there is no such checkpoint.
    """
    config = config_of_run(run, overrides)
    if isinstance(config, SftConfig):
        from whet.rl.sft.run import run_sft

        return run_sft(config, resume=True, step=step, json_output=json_output)
    from whet.rl.run import run_training

    return run_training(config, resume=True, step=step, json_output=json_output)
