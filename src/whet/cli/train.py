"""`whet train`: train a model on environments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whet.cli.output import JsonOption, extra, print_json

app = typer.Typer(rich_markup_mode=None)


@app.callback()
def _train() -> None:
    """A group even while it has a single command."""


@app.command("run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The run's TOML file.")],
    name: Annotated[
        str | None,
        typer.Option(help="Name of the run, and of its directory under runs/; auto takes the first that is free."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run of this name from its last checkpoint.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved config and stop.")] = False,
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
    _config_comes_first(config, context.args)
    resolved = load_run_config(config, overrides)
    if dry_run:
        if json_output:
            print_json(resolved.model_dump(mode="json", exclude_none=True))
        else:
            typer.echo(resolved.to_toml(), nl=False)
        return
    with extra("train", "training"):
        from whet.rl.run import run_training

        outcome = run_training(resolved, resume=resume, json_output=json_output)
    if json_output:
        print_json(outcome)
    if outcome.state != "finished":
        raise typer.Exit(130 if outcome.state == "interrupted" else 1)


def _config_comes_first(config: Path, rest: list[str]) -> None:
    """`--key value` before CONFIG makes the value look like CONFIG; say so rather than that the file is missing."""
    from whet.errors import ConfigError

    if config.suffix == ".toml" or config.exists():
        return
    for token in rest:
        if token.endswith(".toml"):
            raise ConfigError(
                f"'{config}' is not a config file. CONFIG comes before --key value: whet train run {token} ..."
            )
