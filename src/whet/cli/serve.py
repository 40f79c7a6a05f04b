"""`whet serve`: a model behind the interfaces of OpenAI and Anthropic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whet.cli.output import extra
from whet.config import validate
from whet.gateway.adapters import read_adapters
from whet.gateway.serve import ServeConfig, serve

DEFAULTS = ServeConfig()


def _help(field: str) -> str | None:
    return ServeConfig.model_fields[field].description


def serve_command(
    model: Annotated[str, typer.Argument(help=_help("model"))] = DEFAULTS.model,
    name: Annotated[str | None, typer.Option(help=_help("name"))] = DEFAULTS.name,
    adapter: Annotated[
        list[str] | None, typer.Option("--adapter", "-a", help=_help("adapters"), metavar="NAME=PATH")
    ] = None,
    adapters_from: Annotated[
        Path | None, typer.Option(help=_help("adapters_from"), metavar="DIR")
    ] = DEFAULTS.adapters_from,
    host: Annotated[str, typer.Option(help=_help("host"))] = DEFAULTS.host,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", help=_help("allow_host"), metavar="NAME")
    ] = None,
    port: Annotated[int, typer.Option("--port", "-p", help=_help("port"))] = DEFAULTS.port,
    api_key_var: Annotated[
        str | None, typer.Option("--api-key-var", "-k", help=_help("api_key_var"), metavar="NAME")
    ] = DEFAULTS.api_key_var,
    max_concurrent: Annotated[
        int, typer.Option("--max-concurrent", "-c", help=_help("max_concurrent"))
    ] = DEFAULTS.max_concurrent,
    dtype: Annotated[str, typer.Option(help=_help("dtype"))] = DEFAULTS.dtype,
    threads: Annotated[int | None, typer.Option(help=_help("threads"))] = DEFAULTS.threads,
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
    given = {
        "model": model,
        "name": name,
        "adapters": read_adapters(adapter or []),
        "adapters_from": adapters_from,
        "host": host,
        "allow_host": tuple(allow_host or ()),
        "port": port,
        "api_key_var": api_key_var,
        "max_concurrent": max_concurrent,
        "dtype": dtype,
        "threads": threads,
    }

    config = validate(ServeConfig, given, "command line")

    def loading(model: str) -> None:
        typer.echo(f"loading {model}", err=True)

    def ready(address: str, served: str) -> None:
        typer.echo(f"{served} at {address}/v1 (OpenAI) and {address} (Anthropic); Ctrl-C stops it", err=True)

    with extra("serve", "serving a model"), extra("train", "running a model here"):
        serve(config, ready, loading)
