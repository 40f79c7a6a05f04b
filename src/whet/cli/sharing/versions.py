"""`whet env version` and `whet env action`: versions on a hub, and how it tried them out."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from whet.cli.output import JsonOption, print_json, print_result
from whet.cli.sharing.common import HubOption, IdArgument, hub_id, id_with_version, safe
from whet.errors import ConfigError
from whet.hub.answers import ActionAnswer, VersionAnswer
from whet.hub.client.connection import HubClient, connect, path_of
from whet.hub.client.fetch import find_version, version_path
from whet.system.terminal import safe_lines

WATCH_S = 1.0

version_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
action_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@version_app.command("list")
def list_versions(environment: IdArgument, hub: HubOption = None, json_output: JsonOption = False) -> None:
    """The versions of an environment on the hub."""
    with connect(hub) as connection:
        versions = list(connection.items(VersionAnswer, f"{hub_id(environment).path}/versions"))
    if json_output:
        print_json({"versions": versions})
        return
    rows = [
        {
            "version": version.version,
            "created": version.created_at,
            "by": version.pushed_by,
            "downloads": version.downloads,
            "action": version.action.state if version.action else "",
            "yanked": (version.yanked.reason or "yes") if version.yanked else "",
        }
        for version in versions
    ]
    print_result(safe({"versions": rows}), False)


@version_app.command("yank")
def yank(
    environment: IdArgument,
    reason: Annotated[str, typer.Option(help="Shown to those who ask for this version.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Offer it to new installs again.")] = False,
    hub: HubOption = None,
) -> None:
    """Hide a version from new installs; who names it exactly still gets it.

    \b
    Example:
      whet env version yank alice/word-game@1.2.0 --reason "wrong answers"
    """
    wanted = id_with_version(environment)
    with connect(hub) as connection:
        method, body = ("DELETE", None) if undo else ("POST", {"reason": reason})
        connection.send(method, f"/api/v1{version_path(wanted)}/yank", json=body, retry=True)
    typer.echo(f"{wanted} is {'no longer yanked' if undo else 'yanked'}")


@version_app.command("delete")
def delete_version(
    environment: IdArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    hub: HubOption = None,
) -> None:
    """Delete a version and its files for ever. Its number is not given out again; yanking is usually enough.

    \b
    Example:
      whet env version delete alice/word-game@1.2.0
    """
    wanted = id_with_version(environment)
    with connect(hub) as connection:
        if not yes and not typer.confirm(f"delete {wanted} for ever, also for those who use it?", err=True):
            raise typer.Abort
        connection.send("DELETE", f"/api/v1{version_path(wanted)}")
    typer.echo(f"deleted {wanted}")


@action_app.command("list")
def list_actions(environment: IdArgument, hub: HubOption = None, json_output: JsonOption = False) -> None:
    """How the hub tried a version out, each time it did."""
    with connect(hub) as connection:
        actions = _actions(connection, environment)
    print_result(safe({"actions": [action.model_dump() for action in actions]}), json_output)


@action_app.command("logs")
def action_logs(
    environment: IdArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print what comes until it is done.")] = False,
    hub: HubOption = None,
) -> None:
    """What was printed when the hub last tried a version out.

    \b
    Example:
      whet env action logs alice/word-game@1.2.0 --follow
    """
    with connect(hub) as connection:
        newest = _newest_action(connection, environment)
        if follow:
            newest = watched(connection, newest.id, quiet=False)
        else:
            _print_log(connection, newest.id, 0)
    typer.echo(f"{newest.environment}@{newest.version}: {newest.state}", err=True)


@action_app.command("retry")
def retry_action(environment: IdArgument, hub: HubOption = None) -> None:
    """Have the hub try a version out again."""
    with connect(hub) as connection:
        newest = _newest_action(connection, environment)
        again = connection.ask(ActionAnswer, "POST", f"/actions/{newest.id}/retry")
    typer.echo(f"{again.environment}@{again.version} is {again.state}, attempt {again.attempt}")


def _actions(hub: HubClient, environment: str) -> list[ActionAnswer]:
    version = find_version(hub, hub_id(environment))
    return list(hub.items(ActionAnswer, f"{version_path(version)}/actions"))


def _newest_action(hub: HubClient, environment: str) -> ActionAnswer:
    actions = _actions(hub, environment)
    if not actions:
        raise ConfigError(f"the hub has not tried {environment} out.")
    return max(actions, key=lambda action: action.queued_at)


def watched(hub: HubClient, action: str, *, quiet: bool) -> ActionAnswer:
    """An action once it is done; its log is printed as it grows, on standard error."""
    offset = 0
    while True:
        state = hub.ask(ActionAnswer, "GET", f"/actions{path_of(action)}")
        if not quiet:
            offset = _print_log(hub, action, offset)
        if state.state in ("passed", "failed"):
            return state
        time.sleep(WATCH_S)


def _print_log(hub: HubClient, action: str, offset: int) -> int:
    """Print an action's log from a byte on; returns the byte after the last."""
    answer = hub.send(
        "GET", f"/api/v1/actions{path_of(action)}/log", params={"offset": str(offset)}, headers={"Accept": "*/*"}
    )
    for line in safe_lines(answer.text.removesuffix("\n")) if answer.content else []:
        typer.echo(line)
    return offset + len(answer.content)
