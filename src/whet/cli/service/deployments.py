"""`whet deployments`: checkpoints of the service's runs, served as models."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from whet.cli.output import JsonOption, print_json, print_result
from whet.cli.service.common import ServiceRun, moment, service_run
from whet.cli.sharing.common import HubOption, safe

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id, or model, of a deployment.")]

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def _deployments() -> None:
    """Checkpoints of the service's runs, served as models."""


@app.command("create")
def create(
    run: ServiceRun,
    step: Annotated[int | None, typer.Option(min=1, help="Which checkpoint; the newest if absent.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the model after the `:`.", show_default="by the run's")
    ] = None,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Serve a checkpoint as the model BASE:NAME, to those who may see its run. OpenAI's and Anthropic's clients use it.

    \b
    Examples:
      whet deployments create 1f2e3d4c5b6a7988
      whet deployments create ann/quickstart --step 50 --name first
    """
    with service_run(run, hub) as (service, found):
        body = {"run": found.id, "step": step, "name": name}
        made = service.send("POST", "/api/v1/deployments", json=body).json()
    if json_output:
        print_json(made)
        return
    print_result(safe(_facts(made)), False)
    typer.echo(safe(f"evaluate it: whet eval run ENV -m {made['model']} -b {made.get('url') or service.url + '/v1'}"))


@app.command("list")
def list_deployments(
    owner: Annotated[str | None, typer.Option(help="User or organisation.", show_default="all that you see")] = None,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """List deployments: models, whether each is ready, and how much it was used.

    \b
    Example:
      whet deployments list
    """
    from whet.service.client.connection import connect_service

    with connect_service(hub) as service:
        answer = service.send("GET", "/api/v1/deployments", params={} if owner is None else {"owner": owner}).json()
    if json_output:
        print_json({"deployments": answer["items"]})
    elif answer["items"]:
        print_result(safe({"deployments": [_facts(one) for one in answer["items"]]}), False)
    else:
        typer.echo("nothing is deployed. Serve a checkpoint: whet deployments create RUN")


@app.command("delete")
def delete(
    deployment: IdArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """End a deployment. The run and its checkpoints stay.

    \b
    Example:
      whet deployments delete whet/tiny:first
    """
    from whet.errors import RunError
    from whet.hub.client.connection import path_of
    from whet.service.client.connection import connect_service

    with connect_service(hub) as service:
        answer = service.send("GET", "/api/v1/deployments").json()
        found = next((one for one in answer["items"] if deployment in (one["id"], one["model"])), None)
        if found is None:
            raise RunError(f"there is no deployment {deployment!r} on {service.url}. `whet deployments list` has them.")
        if not yes and not typer.confirm(f"end {safe(found['model'])}?", err=True):
            raise typer.Exit(1)
        service.send("DELETE", f"/api/v1/deployments{path_of(found['id'])}")
    if json_output:
        print_json({"deleted": found["id"]})
    else:
        typer.echo(safe(f"{found['model']} has ended"))


def _facts(deployment: dict[str, Any]) -> dict[str, Any]:
    return {
        key: moment(value) if key.endswith("_at") else value
        for key, value in deployment.items()
        if value not in (None, "")
    }
