"""`whet env secret` and `whet env var`: what a hub keeps with an environment."""

from __future__ import annotations

from typing import Annotated

import typer

from whet.cli.output import JsonOption
from whet.cli.sharing.common import HubOption, IdArgument, hub_id, print_items, read_value
from whet.hub.answers import KeyAnswer
from whet.hub.client.connection import connect, path_of

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="A-Z, 0-9 and _, such as API_KEY.")]

secret_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
var_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@secret_app.command("list")
def list_secrets(environment: IdArgument, hub: HubOption = None, json_output: JsonOption = False) -> None:
    """The names of an environment's secrets."""
    print_items(KeyAnswer, f"{hub_id(environment).path}/secrets", "secrets", hub, json_output)


@secret_app.command("set")
def set_secret(environment: IdArgument, key: KeyArgument, hub: HubOption = None) -> None:
    """Set a secret. Its value is read from standard input, or typed unseen; no command line shows it.

    \b
    Example:
      whet env secret set alice/word-game API_KEY < key.txt
    """
    _set_key(environment, "secrets", key, read_value(key), hub)


@secret_app.command("delete")
def delete_secret(environment: IdArgument, key: KeyArgument, hub: HubOption = None) -> None:
    """Delete a secret."""
    _delete_key(environment, "secrets", key, hub)


@var_app.command("list")
def list_variables(environment: IdArgument, hub: HubOption = None, json_output: JsonOption = False) -> None:
    """The variables of an environment."""
    print_items(KeyAnswer, f"{hub_id(environment).path}/variables", "variables", hub, json_output)


@var_app.command("set")
def set_variable(
    environment: IdArgument,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Text of at most 64 KiB.")],
    hub: HubOption = None,
) -> None:
    """Set a variable, which is no secret."""
    _set_key(environment, "variables", key, value, hub)


@var_app.command("delete")
def delete_variable(environment: IdArgument, key: KeyArgument, hub: HubOption = None) -> None:
    """Delete a variable."""
    _delete_key(environment, "variables", key, hub)


def _set_key(environment: str, kind: str, key: str, value: str, hub: str | None) -> None:
    wanted = hub_id(environment)
    with connect(hub) as connection:
        connection.send("PUT", f"/api/v1{wanted.path}/{kind}{path_of(key)}", json={"value": value})
    typer.echo(f"{key} of {wanted} is set")


def _delete_key(environment: str, kind: str, key: str, hub: str | None) -> None:
    wanted = hub_id(environment)
    with connect(hub) as connection:
        connection.send("DELETE", f"/api/v1{wanted.path}/{kind}{path_of(key)}")
    typer.echo(f"{key} of {wanted} is deleted")
