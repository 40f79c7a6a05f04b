"""`whet secret`: secrets of an owner, for all of its runs on the service."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from whet.cli.output import JsonOption, print_done, print_result
from whet.cli.sharing.common import HubOption, read_value, safe
from whet.errors import ConfigError

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="Name of the variable that runs see.")]
OwnerOption = Annotated[str | None, typer.Option(help="User or organisation.", show_default="`whet config`'s, or you")]

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def _secret() -> None:
    """Secrets of an owner for its runs on the service: names are shown, values never."""


@app.command("set")
def set_secret(
    key: KeyArgument,
    from_env: Annotated[
        str | None, typer.Option("--from-env", help="Take the value of this variable.", metavar="NAME")
    ] = None,
    owner: OwnerOption = None,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Set a secret. Its value is read from standard input, or typed unseen; no command line shows it.

    Each member's run is given the secrets of an organisation, and can print them.

    \b
    Examples:
      whet secret set OPENAI_API_KEY --from-env OPENAI_API_KEY
      whet secret set HF_TOKEN --owner my-team < token.txt
    """
    from whet.hub.client.connection import path_of
    from whet.hub.client.publish import default_owner
    from whet.service.client.connection import connect_service

    with connect_service(hub) as service:
        value = read_value(key) if from_env is None else _variable(from_env)
        chosen = owner or default_owner(service)
        service.send("PUT", f"/api/v1/secrets{path_of(chosen, key)}", json={"value": value})
    print_done({"owner": chosen, "name": key}, json_output, f"{key} of {chosen} is set")


@app.command("list")
def list_secrets(owner: OwnerOption = None, hub: HubOption = None, json_output: JsonOption = False) -> None:
    """The names of an owner's secrets, and when each was set.

    \b
    Example:
      whet secret list --owner my-team
    """
    from whet.cli.service.common import moment
    from whet.hub.client.publish import default_owner
    from whet.service.client.connection import connect_service

    with connect_service(hub) as service:
        answer = service.send("GET", "/api/v1/secrets", params={"owner": owner or default_owner(service)}).json()
    secrets = answer["items"]
    if not json_output:
        secrets = [{key: moment(item) if key.endswith("_at") else item for key, item in one.items()} for one in secrets]
    print_result(safe({"secrets": secrets}), json_output)


@app.command("delete")
def delete_secret(
    key: KeyArgument, owner: OwnerOption = None, hub: HubOption = None, json_output: JsonOption = False
) -> None:
    """Delete a secret. Runs that have begun keep what they were given.

    \b
    Example:
      whet secret delete HF_TOKEN
    """
    from whet.hub.client.connection import path_of
    from whet.hub.client.publish import default_owner
    from whet.service.client.connection import connect_service

    with connect_service(hub) as service:
        chosen = owner or default_owner(service)
        service.send("DELETE", f"/api/v1/secrets{path_of(chosen, key)}")
    print_done({"owner": chosen, "deleted": key}, json_output, f"{key} of {chosen} is deleted")


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise ConfigError(f"--from-env {name}: the variable is not set here, or it is empty.")
    return value
