"""`whet cluster check`: what a Ray cluster has, and where a run would be on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whet.cli.options import check_config_first
from whet.cli.output import JsonOption, extra, print_done

app = typer.Typer(rich_markup_mode=None)


@app.callback()
def _cluster() -> None:
    """Run on a Ray cluster."""


@app.command("check", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def check(
    context: typer.Context,
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="A run's TOML file.")] = None,
    address: Annotated[
        str | None,
        typer.Option(help='"auto", "local" or host:port.', show_default="ray_address of the config, else auto"),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Say what a Ray cluster has, where a config would place what, and what is missing.

    Nothing is reserved or started but one short task on each node. Any key of the config can be given after it, as
    --key value. Exit code: 0 when a run could begin, 1 when something is missing, 2 when the cluster does not answer.

    \b
    Examples:
      whet cluster check
      whet cluster check --address 10.0.0.1:6379 --json
      whet cluster check my.toml --inference.servers 4
    """
    with extra("train", "placing a run"):
        from whet.rl.cluster.check import check_cluster
        from whet.rl.cluster.nodes import AUTO
        from whet.rl.config import load_run_config
        from whet.rl.plan import plan_training

        if config is None:
            report = check_cluster(address or AUTO)
        else:
            check_config_first(context, config)
            options = [*context.args, *([] if address is None else ["--deployment.ray_address", address])]
            run = load_run_config(config, options)
            if run.deployment.ray_address is None:
                run = load_run_config(config, [*options, "--deployment.ray_address", AUTO])
            report = check_cluster(run.deployment.ray_address or AUTO, run, plan_training(run).placement)
    print_done(report, json_output, "\n".join(report.lines()), ok=not report.missing)
