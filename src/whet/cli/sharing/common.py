"""What the commands about a hub share."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whet.cli.output import print_result
from whet.errors import ConfigError
from whet.system.terminal import safe_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import BaseModel

    from whet.evals.config import EvalConfig
    from whet.hub.client.fetch import HubId

HubOption = Annotated[
    str | None, typer.Option("--hub", help="Address of the hub.", metavar="URL", show_default="the one of `whet login`")
]
IdArgument = Annotated[str, typer.Argument(metavar="OWNER/NAME[@VERSION]", help="Id of an environment on the hub.")]


def hub_id(text: str) -> HubId:
    """A name alone is one of the default owner's."""
    from whet.hub.client.fetch import HubId
    from whet.hub.client.settings import read_settings

    return HubId.parse(text, read_settings().owner)


def id_with_version(text: str) -> HubId:
    wanted = hub_id(text)
    if wanted.version is None:
        raise ConfigError(f"name the version: {wanted}@VERSION. `whet env version list {wanted}` has them.")
    return wanted


def login_as_key(configs: Iterable[EvalConfig]) -> None:
    """Where the key of a model's endpoint is to be WHET_HUB_TOKEN, and that is not set: the token of the login, for
    this process. Raises `ConfigError` where there is no login."""
    from whet.evals.model import endpoint_of
    from whet.hub.client.settings import TOKEN_VARIABLE, hub_url, token_for

    endpoints = (one for config in configs if not config.local for one in endpoint_of(config).spread())
    if os.environ.get(TOKEN_VARIABLE) or all(one.api_key_var != TOKEN_VARIABLE for one in endpoints):
        return
    url = hub_url()
    token = token_for(url)
    if token is None:
        raise ConfigError(f"{TOKEN_VARIABLE} is not set, and there is no login to {url}. Log in with: whet login")
    os.environ[TOKEN_VARIABLE] = token


def safe(value: Any) -> Any:
    """What a hub says, with texts that cannot move or colour anything in a terminal."""
    if isinstance(value, str):
        return safe_text(value, 1_000)
    if isinstance(value, dict):
        return {safe(key): safe(item) for key, item in value.items()}
    return [safe(item) for item in value] if isinstance(value, list) else value


def print_items(answer: type[BaseModel], path: str, name: str, hub: str | None, json_output: bool) -> None:
    """Print everything of a list on the hub."""
    from whet.hub.client.connection import connect

    with connect(hub) as connection:
        items = [item.model_dump(exclude_unset=True) for item in connection.items(answer, path)]
    print_result(safe({name: items}), json_output)


def read_value(key: str) -> str:
    """The value of a secret, of standard input or typed unseen. Raises `ConfigError` for one that is empty."""
    if sys.stdin.isatty():
        value = str(typer.prompt(f"value of {key}", hide_input=True, err=True))
    else:
        value = sys.stdin.read().removesuffix("\n")
    if not value:
        raise ConfigError(f"the value of {key} on standard input is empty.")
    return value
