"""`whet train sweep`: several trainings of one config, and the table of what came of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from whet.cli.options import config_options
from whet.cli.output import JsonOption, console, extra, print_json
from whet.config import options_of
from whet.rl.sweep.config import SweepConfig

if TYPE_CHECKING:
    from rich.console import Console

    from whet.rl.sweep.sweep import SweepResult

COMPARED = 4
"""Runs that the dashboard's page shows over one another."""


@config_options(options_of(SweepConfig))
def train_sweep(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A run's TOML file, or a sweep file.")],
    given: dict[str, Any],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="Values of a key of the run's config: K=1,2 or K=[1, 2] or K={low=1, high=9, log=true}; one value is "
            "set for all trials. May be repeated.",
            metavar="KEY=VALUES",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the sweep of this name.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Train one config with several values of some keys, and print which is best on held-out tasks.

    A sweep file has these options as keys, the values in [vary], and in `config` the run's file. Each trial is a run,
    runs/NAME-0, ..., which every other command knows. Ctrl-C or a kill loses nothing: --resume continues.

    \b
    Examples:
      whet train sweep my.toml --vary learning_rate=1e-4,3e-4,1e-3
      whet train sweep my.toml --vary learning_rate=1e-4,1e-3 --vary lora.rank=8,32 --method asha --parallel 2
      whet train sweep my.toml --vary 'learning_rate={low=1e-5, high=1e-3, log=true}' --method tpe --trials 20
      whet train sweep my.toml --vary learning_rate=1e-4,1e-3 --resume
      whet train sweep my-sft.toml --vary learning_rate=1e-4,1e-3 --vary max_steps=90 --metric validation/loss
    """
    from whet.rl.sweep.config import load_sweep

    loaded, base = load_sweep(config, given, vary or [])
    with extra("train", "training", first="torch"):
        from whet.rl.sweep.sweep import Sweep

        sweep = Sweep(loaded, base, say=lambda line: print(line, file=sys.stderr, flush=True))
        result = sweep.run(resume=resume)
    if json_output:
        print_json(result)
    else:
        print_sweep(result, console())
    if result.state == "interrupted":
        raise typer.Exit(130)
    if not any(trial.score is not None for trial in result.trials):
        raise typer.Exit(1)


def print_sweep(result: SweepResult, out: Console) -> None:
    """A row for each trial, the best first; what was used; what to look at next."""
    from whet.dashboard.folders import identity
    from whet.display.text import number, print_fact, print_rows

    rows = [
        {
            "run": trial.run.name,
            **{key: f"{value:g}" if isinstance(value, float) else str(value) for key, value in trial.values.items()},
            "score": number(trial.score),
            result.counted: f"{trial.rollouts:,}",
            "state": trial.state + (f": {trial.note}" if trial.note else ""),
        }
        for trial in result.trials
    ]
    print_rows(rows, out, {"score", result.counted})
    share = f" ({result.rollouts / result.whole:.0%} of those of all trials in full)" if result.whole else ""
    print_fact("used", f"{result.rollouts:,} {result.counted}{share}", out)
    print_fact("sweep", f"{result.state}: {result.directory}", out, fold=False)
    if result.state != "finished" or any(trial.state == "failed" for trial in result.trials):
        print_fact("continue", "the same command with --resume; a larger --rollouts may go with it", out)
    scored = [trial for trial in result.trials if trial.score is not None]
    if scored:
        print_fact("best", f"whet train show {scored[0].run}", out, fold=False)
    if len(scored) > 1:
        ids = urlencode([("run", identity(trial.run.absolute())) for trial in scored[:COMPARED]])
        print_fact("compare", f"whet dashboard {scored[0].run.parent}, there /compare?{ids}", out, fold=False)
