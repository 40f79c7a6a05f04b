"""`whet dashboard`: runs and evaluations of some folders in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from whet.cli.options import config_options
from whet.cli.output import extra
from whet.config import options_of, validate
from whet.dashboard.serve import DashboardConfig, serve
from whet.system.offline import is_loopback

FIELDS = DashboardConfig.model_fields


@config_options(options_of(DashboardConfig, without=("folders",)))
def dashboard_command(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help=FIELDS["folders"].description, show_default="runs outputs"),
    ] = None,
    *,
    given: dict[str, Any],
) -> None:
    """Show runs and evaluations of some folders in a browser, live and read-only, until Ctrl-C.

    Curves, rollouts, tokens, logs, checkpoints and findings of training, imitation, evaluations and searches.

    \b
    Examples:
      whet dashboard
      whet dashboard runs/ outputs/ --port 9000
    """
    config = validate(DashboardConfig, {"folders": tuple(folders or ()), **given}, "command line")

    def ready(address: str) -> None:
        if not is_loopback(config.host):
            typer.echo("other machines can reach this: everything in these folders can be read by them", err=True)
        typer.echo(f"dashboard at {address}; Ctrl-C stops it", err=True)

    with extra("dashboard", "the dashboard"):
        serve(config, ready)
