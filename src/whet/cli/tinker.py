"""`whet tinker`: a server for the tinker SDK; what is trained on it."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from whet.cli.options import config_options
from whet.cli.output import JsonOption, extra, print_result
from whet.config import options_of, validate
from whet.errors import ConfigError, EndpointError
from whet.system.offline import is_loopback
from whet.tinker.serve import TinkerConfig, serve

FIELDS = TinkerConfig.model_fields
app = typer.Typer(rich_markup_mode=None)


@app.callback()
def _tinker() -> None:
    """Train models with a loop of your own: a server that the tinker SDK talks to."""


@app.command("serve")
@config_options(options_of(TinkerConfig, without=("model",)))
def serve_tinker(
    model: Annotated[str, typer.Argument(help=FIELDS["model"].description)] = FIELDS["model"].default,
    *,
    given: dict[str, Any],
) -> None:
    """Serve the training API for a base model until Ctrl-C. Clients set TINKER_BASE_URL and TINKER_API_KEY.

    The first start prints the administrator's key, once. A server that ends, however it ends, continues with every
    session at its next start. docs/tinker.md is the guide.

    \b
    Examples:
      whet tinker serve
      whet tinker serve Qwen/Qwen3-0.6B --data /srv/tinker --adapter-gib 8
    """
    config = validate(TinkerConfig, {"model": model, **given}, "command line")

    def ready(address: str, base: str, key: str | None) -> None:
        if key is not None:
            typer.echo(f"administrator's key, shown only now: {key}", err=True)
        if not is_loopback(config.host):
            typer.echo("other machines can reach this; put a proxy with TLS before it, since keys are sent", err=True)
        typer.echo(f"{base} at {address}: export TINKER_BASE_URL={address}; Ctrl-C stops it", err=True)
        typer.echo(f"curves of each model: whet dashboard {config.data / 'runs'}", err=True)

    with extra("tinker", "serving the training API"):
        serve(config, ready)


@app.command("status")
def status(
    url: Annotated[
        str, typer.Option(envvar="TINKER_BASE_URL", help="Address of the server.", metavar="URL")
    ] = "http://127.0.0.1:8700",
    json_output: JsonOption = False,
) -> None:
    """List the models that are trained on a server, those of the key in TINKER_API_KEY.

    \b
    Example:
      whet tinker status
    """
    import httpx

    key = os.environ.get("TINKER_API_KEY")
    if not key:
        raise ConfigError("TINKER_API_KEY holds no key. Set it to the one that `whet tinker serve` printed.")
    try:
        with httpx.Client(base_url=url, headers={"X-API-Key": key}, timeout=30) as client:
            runs = _read(client.get("/api/v1/training_runs", params={"limit": 1000}))
            base = _read(client.get("/api/v1/get_server_capabilities"))["supported_models"][0]
    except httpx.HTTPError as error:
        raise EndpointError(f"no server answers at {url} ({error}). Start one: whet tinker serve") from error
    models = [
        {
            "model": run["training_run_id"],
            "rank": run["lora_rank"],
            "last request": run["last_request_time"],
            "last state": (run["last_checkpoint"] or {}).get("tinker_path"),
        }
        for run in runs["training_runs"]
    ]
    print_result(
        {"base": base["model_name"], "context": base["max_context_length"], "models": models}, as_json=json_output
    )


def _read(response: Any) -> Any:
    if response.status_code != 200:
        raise EndpointError(f"{response.url}: {response.text[:500]}")
    return response.json()
