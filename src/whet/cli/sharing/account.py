"""`whet login`, `logout`, `whoami`, `config`: which hub this machine uses, and its login there."""

from __future__ import annotations

import os
import sys
import time
import webbrowser
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from whet.cli.output import JsonOption, print_done, print_result
from whet.cli.sharing.common import HubOption
from whet.errors import ConfigError

if TYPE_CHECKING:
    from whet.hub.client.connection import HubClient

Key = Literal["hub", "owner"]
config_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


def login(
    hub: HubOption = None,
    headless: Annotated[
        bool, typer.Option("--headless", help="Read a token from standard input, or from WHET_HUB_TOKEN; ask nothing.")
    ] = False,
    scope: Annotated[
        Literal["read", "push", "admin"], typer.Option(help="What the new token may do. With a code only.")
    ] = "push",
    browser: Annotated[bool, typer.Option(help="Open the page that asks for the code.")] = True,
    json_output: JsonOption = False,
) -> None:
    """Log in to a hub, and use that one from now on.

    Shows a code to confirm in a browser, on this machine or any other. With --headless a token is read instead, for
    machines without a person; a hub's page /account makes tokens.

    \b
    Examples:
      whet login --hub https://hub.example.com
      whet login --hub http://127.0.0.1:8800 --headless < token.txt
    """
    from whet.hub.answers import Identity
    from whet.hub.client.connection import HubClient
    from whet.hub.client.settings import hub_url, read_settings, save_token, sends_in_clear, write_settings

    url = hub_url(hub)
    if sends_in_clear(url):
        typer.echo(f"warning: {url} is not encrypted: who is on the way can read the token. Use https.", err=True)
    if headless:
        token = _token_from_input()
    else:
        with HubClient(url) as anonymous:
            token = _token_for_code(anonymous, scope, browser)
    with HubClient(url, token) as checked:
        identity = checked.ask(Identity, "GET", "/whoami")
    stored_in = save_token(url, token)
    write_settings(read_settings().model_copy(update={"hub": url}))
    print_done(
        {"hub": url, "user": identity.user, "scope": identity.scope},
        json_output,
        f"logged in to {url} as {identity.user} (scope {identity.scope}); the token is in {stored_in}",
    )


def _token_from_input() -> str:
    """Raises `ConfigError` where there is none."""
    from whet.hub.client.settings import TOKEN_VARIABLE

    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token and sys.stdin.isatty():
        token = typer.prompt("token", hide_input=True, err=True).strip()
    elif not token:
        token = sys.stdin.readline().strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"there is no token on standard input. Pipe one in, or set {TOKEN_VARIABLE}.")
    return token


def _token_for_code(hub: HubClient, scope: str, browser: bool) -> str:
    """The token of a login that a user confirms elsewhere."""
    import platform

    from whet.hub.answers import DeviceCodeAnswer, LoginAnswer
    from whet.hub.client.connection import HubRequestError
    from whet.system.terminal import safe_text

    body = {"client": f"whet on {platform.node() or 'a machine'}"[:100], "scope": scope}
    code = hub.ask(DeviceCodeAnswer, "POST", "/device/code", json=body)
    typer.echo(f"open {safe_text(code.verification_uri)} and confirm the code {safe_text(code.user_code)}", err=True)
    if browser and sys.stderr.isatty() and code.verification_uri_complete.startswith(("http://", "https://")):
        webbrowser.open(code.verification_uri_complete)
    interval, deadline = max(code.interval, 1.0), time.monotonic() + code.expires_in
    while time.monotonic() < deadline:
        time.sleep(interval)
        try:
            return hub.ask(LoginAnswer, "POST", "/device/token", json={"device_code": code.device_code}).token
        except HubRequestError as error:
            if error.code == "slow_down":
                interval += 5.0
            elif error.code != "authorization_pending":
                raise
    raise HubRequestError("the code was not confirmed in time. Log in again.")


def logout(hub: HubOption = None) -> None:
    """Revoke this machine's token, and forget it.

    \b
    Example:
      whet logout
    """
    from whet.hub.client.connection import HubRequestError, connect
    from whet.hub.client.settings import forget_token

    with connect(hub) as connection:
        try:
            if connection.token is not None:
                connection.send("DELETE", "/api/v1/tokens/current")
        except HubRequestError as error:
            revoked = error.code == "unauthenticated"  # it was revoked or has expired before
            if not revoked:
                typer.echo(f"warning: the token is still valid, since it could not be revoked: {error}", err=True)
        known = forget_token(connection.url)
    typer.echo(f"logged out of {connection.url}" if known else f"there was no login to {connection.url}")


def whoami(hub: HubOption = None, json_output: JsonOption = False) -> None:
    """The user of this machine's token, what the token may do, and in which owners.

    \b
    Example:
      whet whoami
    """
    from whet.hub.answers import Identity
    from whet.hub.client.connection import connect

    with connect(hub) as connection:
        identity = connection.ask(Identity, "GET", "/whoami")
    print_result({"hub": connection.url, **identity.model_dump()}, json_output)


@config_app.command("show")
def show_config(json_output: JsonOption = False) -> None:
    """The hub and the owner that commands use, and where they are written.

    \b
    Example:
      whet config show
    """
    from whet.hub.client.settings import read_settings, settings_file

    print_result({"file": str(settings_file()), **read_settings().model_dump()}, json_output)


@config_app.command("set")
def set_config(
    key: Annotated[Key, typer.Argument(help="`hub`, its address; or `owner`, where `env push` puts environments.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Address of a hub, or name of an owner.")],
) -> None:
    """Change one setting of this machine.

    \b
    Examples:
      whet config set hub https://hub.example.com
      whet config set owner my-team
    """
    from whet.hub.archive.names import check_owner_name
    from whet.hub.client.settings import normal_url, read_settings, write_settings

    checked = normal_url(value) if key == "hub" else check_owner_name(value)
    write_settings(read_settings().model_copy(update={key: checked}))
    typer.echo(f"{key} = {checked}")


@config_app.command("unset")
def unset_config(key: Annotated[Key, typer.Argument(help="`hub` or `owner`.")]) -> None:
    """Remove one setting of this machine.

    \b
    Example:
      whet config unset owner
    """
    from whet.hub.client.settings import read_settings, write_settings

    write_settings(read_settings().model_copy(update={key: None}))
    typer.echo(f"{key} is not set")
