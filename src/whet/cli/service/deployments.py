"""`whet deployments`: checkpoints of the service's runs, served as models."""

from __future__ import annotations

import json
import shlex
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whet.cli.output import JsonOption, answer, print_done, print_json, print_result
from whet.cli.sharing.common import HubOption, safe
from whet.errors import RunError, WhetError
from whet.system.terminal import safe_text

if TYPE_CHECKING:
    from whet.hub.client.connection import HubClient
    from whet.service.answers import DeploymentAnswer

POLL_S = 1.0
START_S = 120.0
"""How long `--wait` waits for a process that loads it; `whet service up` starts one with the first deployment."""
KEY = "WHET_HUB_TOKEN"
NOTHING = (
    "nothing answers for deployments yet: `whet service up` starts that with the first one; where the service's parts "
    "run apart, start it there with: whet service deployments"
)

app = typer.Typer(rich_markup_mode=None)


@app.callback()
def _deployments() -> None:
    """Serve checkpoints of the service's runs."""


@app.command("create")
def create(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of the service: its id or its name.")],
    step: Annotated[
        int | None, typer.Option(min=0, help="Of the checkpoint.", show_default="the newest checkpoint's")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What follows the base model's name.", show_default="RUN-STEP")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it is ready; exit code 1 where it fails.")] = False,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Serve a checkpoint as the model BASE:NAME, to its owner's members, on OpenAI's and Anthropic's interfaces.

    \b
    Examples:
      whet deployments create first
      whet deployments create 0f3a9c51d2e47b86 --step 20 --name best --wait
    """
    from whet.service.answers import DeploymentAnswer
    from whet.service.client.connection import connect_service

    with connect_service(hub) as service:
        body = {"run": _run_id(service, run), "step": step, "name": name}
        made = service.ask(DeploymentAnswer, "POST", "/deployments", json=body)
        if wait:
            made = _settled(service, made)
    answer(made, json_output, lambda: _show(made), ok=not wait or made.state == "ready")


@app.command("list")
def list_deployments(
    owner: Annotated[
        str | None, typer.Option(help="User or organisation.", show_default="all that you may see")
    ] = None,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """List deployments, newest first: model, state, what they were used for.

    \b
    Examples:
      whet deployments list
      whet deployments list --owner my-team --json
    """
    from whet.service.answers import DeploymentAnswer
    from whet.service.client.connection import connect_service

    with connect_service(hub) as service:
        deployments = list(service.items(DeploymentAnswer, "/deployments", owner=owner))
    if json_output:
        print_json({"deployments": deployments})
        return
    if not deployments:
        typer.echo("no deployments. Make one with: whet deployments create RUN")
        return
    print_result(safe({"deployments": [_row(one) for one in deployments]}), False)
    if url := next((one.url for one in deployments if one.url), None):
        typer.echo(f"\nbase URL  {safe_text(url)}")
    else:
        typer.echo(
            "\nnothing answers for them now; start it on the service's machine: whet service deployments", err=True
        )


@app.command("delete")
def delete(
    deployment: Annotated[str, typer.Argument(metavar="DEPLOYMENT", help="Its id, its model, or its name.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Serve a deployment no more. Pending requests are answered; the run and its checkpoints stay.

    \b
    Example:
      whet deployments delete whet/tiny:first-20
    """
    from whet.hub.client.connection import path_of
    from whet.service.client.connection import connect_service

    with connect_service(hub) as service:
        shown = _find(service, deployment)
        if not yes and not typer.confirm(f"delete {safe_text(shown.model)} ({shown.id})?", err=True):
            raise typer.Abort
        service.send("DELETE", f"/api/v1/deployments{path_of(shown.id)}")
    print_done({"removed": {"id": shown.id, "model": shown.model}}, json_output, f"deleted {safe_text(shown.model)}")


def _run_id(service: HubClient, run: str) -> str:
    from whet.service.client.runs import ID, find_run, is_of_service

    if ID.fullmatch(run):
        return run
    if not is_of_service(run):
        raise RunError(
            f"{safe_text(run)} is a run of this machine, not of {service.url}. Serve it here: whet train export "
            f"{shlex.quote(run)}, then whet serve with --adapter or the exported model."
        )
    return find_run(service, run).id


def _settled(service: HubClient, made: DeploymentAnswer) -> DeploymentAnswer:
    """The deployment once it is ready or failed. Raises `RunError` where nothing loads it."""
    from whet.hub.client.connection import path_of
    from whet.service.answers import DeploymentAnswer

    began = time.monotonic()
    while made.state == "pending":
        time.sleep(POLL_S)
        made = service.ask(DeploymentAnswer, "GET", f"/deployments{path_of(made.id)}")
        if made.state == "pending" and made.url is None and time.monotonic() - began > START_S:
            raise RunError(
                f"{made.model} is pending, and nothing loads it: no process serves deployments. Start it on the "
                "service's machine: whet service deployments"
            )
    return made


def _find(service: HubClient, wanted: str) -> DeploymentAnswer:
    from whet.service.answers import DeploymentAnswer

    matching = [
        one for one in service.items(DeploymentAnswer, "/deployments") if wanted in (one.id, one.model, one.name)
    ]
    if len(matching) > 1:
        ids = ", ".join(f"{one.id} ({one.owner}, {one.model})" for one in matching)
        raise WhetError(f"{safe_text(wanted)} is the name of several: {safe_text(ids)}. Give the id.")
    if not matching:
        raise WhetError(f"there is no deployment {safe_text(wanted)!r} that you may see. List: whet deployments list")
    return matching[0]


def _row(one: DeploymentAnswer) -> dict[str, Any]:
    health = one.health
    return {
        "model": one.model,
        "owner": one.owner,
        "state": one.state if not one.reason else f"{one.state}: {one.reason}",
        "loaded": "yes" if health is not None and health.loaded else "no",
        "in flight": health.in_flight if health is not None else 0,
        "requests": one.requests,
        "seconds": round(health.seconds, 2) if health is not None and health.seconds is not None else "",
        "last used": one.last_used_at or "never",
        "id": one.id,
    }


def _show(made: DeploymentAnswer) -> None:
    """The state, and how to use it: to be copied into a shell and into a program."""
    model = safe_text(made.model)
    typer.echo(f"{model}  {made.state}" + (f": {safe_text(made.reason, 500)}" if made.reason else ""))
    if made.state == "failed":
        return
    if made.url is None:
        typer.echo(NOTHING, err=True)
        return
    url = safe_text(made.url)
    body = json.dumps({"model": made.model, "messages": [{"role": "user", "content": "Hello"}]})
    typer.echo(
        f"""base_url  {url}    the key is a token of yours; put one into {KEY}: whet hub token create NAME

curl {shlex.quote(url)}/chat/completions -H "Authorization: Bearer ${KEY}" \\
  -H 'Content-Type: application/json' -d {shlex.quote(body)}

import os, openai
client = openai.OpenAI(base_url={url!r}, api_key=os.environ["{KEY}"])
answer = client.chat.completions.create(model={made.model!r}, messages=[{{"role": "user", "content": "Hello"}}])

whet eval run ENV -m {shlex.quote(made.model)} -b {shlex.quote(url)} -k {KEY}    # the token of `whet login`"""
    )
