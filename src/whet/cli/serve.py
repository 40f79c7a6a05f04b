"""`whet serve` and `whet dashboard`: a model behind the interfaces of OpenAI and Anthropic; runs in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from whet.cli.options import config_options
from whet.cli.output import extra
from whet.config import options_of, validate
from whet.dashboard import serve as dashboard
from whet.gateway.adapters import read_adapters
from whet.gateway.serve import ServeConfig, serve
from whet.system.offline import is_loopback

FIELDS = ServeConfig.model_fields
DASHBOARD = dashboard.DashboardConfig.model_fields


@config_options(options_of(ServeConfig, without=("model", "adapters")))
def serve_command(
    model: Annotated[str, typer.Argument(help=FIELDS["model"].description)] = FIELDS["model"].default,
    adapter: Annotated[
        list[str] | None,
        typer.Option("--adapter", "-a", help=FIELDS["adapters"].description, metavar="NAME=PATH"),
    ] = None,
    *,
    given: dict[str, Any],
) -> None:
    """Serve a model to any program that speaks OpenAI's or Anthropic's interface, until Ctrl-C.

    Chat completions, completions, responses and messages, streamed or not; /v1/models, /health and /metrics.

    \b
    Examples:
      whet serve
      whet serve runs/quickstart/model --name mine --port 9000
      whet serve whet/tiny --adapter mine=runs/lora/adapters/step_80      # requests ask for whet/tiny:mine
      whet serve my-model --host 0.0.0.0 --api-key-var MY_KEY
    """
    values = {"model": model, "adapters": read_adapters(adapter or []), **given}
    config = validate(ServeConfig, values, "command line")

    def loading(model: str) -> None:
        typer.echo(f"loading {model}", err=True)

    def ready(address: str, served: str) -> None:
        typer.echo(f"{served} at {address}/v1 (OpenAI) and {address} (Anthropic); Ctrl-C stops it", err=True)

    with extra("serve", "serving a model"), extra("train", "running a model here"):
        serve(config, ready, loading)


@config_options(options_of(dashboard.DashboardConfig, without=("folders",)))
def dashboard_command(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help=DASHBOARD["folders"].description, show_default="runs outputs"),
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
    config = validate(dashboard.DashboardConfig, {"folders": tuple(folders or ()), **given}, "command line")

    def ready(address: str) -> None:
        if not is_loopback(config.host):
            typer.echo("other machines can reach this: everything in these folders can be read by them", err=True)
        typer.echo(f"dashboard at {address}; Ctrl-C stops it", err=True)

    with extra("dashboard", "the dashboard"):
        dashboard.serve(config, ready)
