"""`whet train`: train a model on environments. Runs that were started before are looked at in `train_stored.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from whet.cli import train_control, train_stored
from whet.cli.output import JsonOption, extra
from whet.cli.train_config import OVERRIDES, Config, Name, Resume, config_comes_first, finish, shown_instead
from whet.cli.train_sft import sft

app = typer.Typer(rich_markup_mode=None)


@app.callback()
def _train() -> None:
    """A group even while it has a single command."""


@app.command("run", context_settings=OVERRIDES)
def run(
    context: typer.Context,
    config: Config,
    name: Name = None,
    resume: Resume = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check models and environments, print the config, memory and step time, and stop.",
        ),
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Train a model by reinforcement learning, as a config file says.

    Any key of the file can be given after it, as --key value: dots for tables, numbers for the place in a list.

    \b
    Examples:
      whet train run configs/rl/quickstart.toml
      whet train run my.toml --max_steps 200 --sampling.temperature 0.8
      whet train run my.toml --env.0.weight 2 --dry-run
      whet train run my.toml --resume
    """
    from whet.rl.config import load_run_config

    overrides = [*(["--name", name] if name is not None else []), *context.args]
    config_comes_first("whet train run", config, context.args)
    resolved = load_run_config(config, overrides)
    if shown_instead(resolved, dry_run, json_output):
        return
    with extra("train", "training"):
        from whet.rl.run import run_training

        outcome = run_training(resolved, resume=resume, json_output=json_output)
    finish(outcome, json_output)


app.command("sft", context_settings=OVERRIDES)(sft)
app.command("list")(train_stored.list_runs)
app.command("show")(train_stored.show)
app.command("logs")(train_stored.logs)
app.command("metrics")(train_stored.metrics)
app.command("rollouts")(train_stored.rollouts)
app.command("compare")(train_stored.compare)
app.command("resume", context_settings=OVERRIDES)(train_control.resume)
app.command("stop")(train_control.stop)
app.command("export")(train_stored.export)
