"""`whet service`: the training service, whole or one of its processes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from whet.cli.options import config_options
from whet.cli.output import JsonOption, extra, print_json
from whet.config import options_of, validate
from whet.service.deployments.serve import DeploymentsConfig
from whet.service.deployments.serve import serve as serve_deployments
from whet.service.runner.serve import RunnerConfig, serve_runner
from whet.service.serve import ApiConfig, serve_api
from whet.service.training_api import TrainingApiConfig, serve_training_api
from whet.service.up import UpConfig, run_service
from whet.system.children import end_with_parent, undumpable
from whet.system.files import expanded
from whet.system.offline import is_loopback

MODEL = TrainingApiConfig.model_fields["model"]
app = typer.Typer(rich_markup_mode=None)


@app.callback()
def _service() -> None:
    """Train as a service: a queue, runners, a dashboard and deployments."""
    undumpable()


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _greet(address: str, token: str | None, host: str) -> None:
    if token is not None:
        _say(f"administrator's token, shown only now: {token}")
        _say(f"log in with: whet login --hub {address} (and with the token on the page)")
    if not is_loopback(host):
        _say("other machines can reach this; put a proxy with TLS before it, since tokens are sent")


@app.command("up")
@config_options(options_of(UpConfig))
def up(*, given: dict[str, Any]) -> None:
    """Start everything on this machine: hub, API, dashboard and a runner; deployments from the first one on; with
    --tinker the training API.

    The first start prints the token of an administrator, once. Ctrl-C stops it; runs in progress continue, and are
    found again by the next start. docs/service.md is the guide.

    \b
    Examples:
      whet service up
      whet service up --sample
      whet service up --tinker whet/tiny
      whet service up --data /srv/whet --port 9000 --core-hour-price 0.04 --device-hour-price 2.5
    """
    config = validate(UpConfig, given, "command line")

    def ready(address: str, token: str | None) -> None:
        _greet(address, token, config.host)
        _say(f"service at {address}; Ctrl-C stops it, and runs continue")

    with contextlib.ExitStack() as stack:
        stack.enter_context(extra("service", "the training service"))
        if config.tinker is not None:
            stack.enter_context(extra("tinker", "serving the training API", first="tinker"))
        run_service(config, ready, _say)


@app.command("api")
@config_options(options_of(ApiConfig))
def api(*, given: dict[str, Any], json_output: JsonOption = False) -> None:
    """Serve hub, API and dashboard until Ctrl-C. Runners are started apart: whet service runner.

    \b
    Examples:
      whet service api --data /srv/whet
      whet service api --data /shared/whet --database postgresql://whet@db/whet --host 0.0.0.0
    """
    config = validate(ApiConfig, given, "command line")
    end_with_parent()

    def ready(address: str, token: str | None) -> None:
        if json_output:
            print_json({"address": address, "token": token})
            return
        _greet(address, token, config.host)
        _say(f"service at {address}; Ctrl-C stops it")

    with extra("service", "the training service"):
        serve_api(config, ready)


@app.command("runner")
@config_options(options_of(RunnerConfig))
def runner(*, given: dict[str, Any]) -> None:
    """Start runs of the queue on this machine until Ctrl-C. What runs then lives on; the next runner follows it.

    Runs are kept apart by bubblewrap: one sees its own folder, Python and the model cache, and nothing of the service.

    \b
    Examples:
      whet service runner
      whet service runner --data /srv/whet --database postgresql://whet@db/whet
      whet service runner --readable /srv/models --name gpu-1
    """
    config = validate(RunnerConfig, given, "command line")
    end_with_parent()
    with extra("service", "a runner"):
        serve_runner(config, lambda line: _say(f"{line}; Ctrl-C stops it, its runs continue"))


@app.command("deployments")
@config_options(options_of(DeploymentsConfig))
def deployments(*, given: dict[str, Any]) -> None:
    """Answer for deployments, by the interfaces of OpenAI and Anthropic, until Ctrl-C.

    `whet service up` starts it by itself. Every request carries a token of the hub. docs/serve.md is the guide.

    \b
    Examples:
      whet service deployments
      whet service deployments --data /srv/whet --host 0.0.0.0 --url https://models.example.org
    """
    config = validate(DeploymentsConfig, given, "command line")
    end_with_parent()

    def ready(address: str) -> None:
        if not is_loopback(config.host) and not (config.url or "").startswith("https:"):
            _say("other machines can reach this; put a proxy with TLS before it, since tokens are sent")
        _say(f"deployments at {address}/v1; Ctrl-C stops it")

    with extra("service", "deployments"):
        serve_deployments(config, ready)


@app.command("tinker")
@config_options(options_of(TrainingApiConfig, without=("model",)))
def tinker(
    model: Annotated[str, typer.Argument(help=MODEL.description)] = MODEL.default,
    *,
    given: dict[str, Any],
) -> None:
    """Serve the training API, which the tinker SDK talks to, to the users of a service until Ctrl-C.

    `whet service up --tinker MODEL` starts it by itself. A key is tml- and a token of the hub. docs/tinker.md is the
    guide.

    \b
    Examples:
      whet service tinker
      whet service tinker Qwen/Qwen3-0.6B --data /srv/whet --adapter-gib 8
    """
    config = validate(TrainingApiConfig, {"model": model, **given}, "command line")
    end_with_parent()

    def ready(address: str, base: str) -> None:
        if not is_loopback(config.host):
            _say("other machines can reach this; put a proxy with TLS before it, since keys are sent")
        _say(f"training API of {base} at {address}: export TINKER_BASE_URL={address}; Ctrl-C stops it")

    with extra("service", "the training service"), extra("tinker", "serving the training API", first="tinker"):
        serve_training_api(config, ready)


@app.command("rotate-key")
def rotate(
    data: Annotated[Path, typer.Option(help="Folder of the service.", metavar="DIR")] = Path("service"),
    database: Annotated[str | None, typer.Option(help="As for `whet service api`.", metavar="URL")] = None,
) -> None:
    """Encrypt all secrets with a new key, and forget the old one. The API must not run; start runners again after it.

    With the key in WHET_HUB_SECRETS_KEY, set it to NEW,OLD first.

    \b
    Example:
      whet service rotate-key --data /srv/whet
    """
    with extra("service", "the training service"):
        from whet.service.service import rotate_key

        count, key = rotate_key(expanded(data).absolute(), database)
        typer.echo(f"{count} values are encrypted with the new key {key}")
