"""What commands that run a training config have in common: overrides, --dry-run, and how a run's end is told."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whet.cli.output import extra, print_json

if TYPE_CHECKING:
    from whet.rl.config import RunConfig
    from whet.rl.monitors.protocol import Outcome
    from whet.rl.sft.config import SftConfig

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="The run's TOML file.")]
Name = Annotated[
    str | None,
    typer.Option(help="Name of the run, and of its directory under runs/; auto takes the first that is free."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run of this name from its last checkpoint.")]

OVERRIDES: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of a command that takes any key of its config as --key value."""


def shown_instead(config: RunConfig | SftConfig, dry_run: bool, json_output: bool) -> bool:
    """With `dry_run`: check models and environments, and print the resolved config and what it will take.

    Returns whether that is all there is to do.

    What is printed is a config file: all but the config stands in comments.
    """
    if not dry_run:
        return False
    from whet.rl.config import RunConfig

    with extra("train", "estimating memory"):
        from whet.rl.estimate import estimate, lines
        from whet.rl.preflight import rehearse
        from whet.rl.sft.estimate import estimate as estimate_fine_tuning

        with redirect_stdout(sys.stderr):  # what environments print is no part of the config
            rehearse(config)
        found = estimate(config) if isinstance(config, RunConfig) else estimate_fine_tuning(config)
    if json_output:
        print_json({**config.model_dump(mode="json", exclude_none=True), "estimate": found})
        return True
    typer.echo(config.to_toml(), nl=False)
    typer.echo("\n" + "\n".join(f"# {line}" for line in lines(found)))
    return True


def finish(outcome: Outcome, json_output: bool) -> None:
    """Print the outcome, and leave with its exit status: 0 finished, 130 interrupted, 1 failed."""
    if json_output:
        print_json(outcome)
    if outcome.state != "finished":
        raise typer.Exit(130 if outcome.state == "interrupted" else 1)


def config_comes_first(command: str, config: Path, rest: list[str]) -> None:
    """`--key value` before CONFIG makes the value look like CONFIG; say so rather than that the file is missing."""
    from whet.errors import ConfigError

    if config.suffix == ".toml" or config.exists():
        return
    for token in rest:
        if token.endswith(".toml"):
            raise ConfigError(
                f"'{config}' is not a config file. CONFIG comes before --key value: {command} {token} ..."
            )
