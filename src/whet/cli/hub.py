"""`whet hub`: a server on which environments are shared; who may do what on it, and who did."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from whet.cli.options import config_options
from whet.cli.output import JsonOption, extra, print_done, print_json, print_result
from whet.cli.sharing.common import HubOption, print_items, safe
from whet.config import options_of, validate
from whet.hub.answers import (
    AuditAnswer,
    AuditVerification,
    MemberAnswer,
    NewTokenAnswer,
    NewUserAnswer,
    OrganisationAnswer,
    TokenAnswer,
    UserAnswer,
)
from whet.hub.client.connection import connect, path_of
from whet.hub.serve import HubConfig, serve
from whet.system.files import expanded
from whet.system.offline import is_loopback

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="Name of a user.")]
OrganisationArgument = Annotated[str, typer.Argument(metavar="ORG", help="Name of an organisation.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

user_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
org_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
member_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
token_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
audit_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app = typer.Typer(rich_markup_mode=None)
app.add_typer(user_app, name="user", help="Users of the hub: add, list, remove.")
app.add_typer(org_app, name="org", help="Organisations: create.")
app.add_typer(member_app, name="member", help="Members of an organisation and their roles: set, remove, list.")
app.add_typer(token_app, name="token", help="Your tokens: create, list, revoke.")
app.add_typer(audit_app, name="audit", help="The audit log: list, verify.")


@app.callback()
def _hub() -> None:
    """Share environments on a server that one hosts."""


@app.command("serve")
@config_options(options_of(HubConfig))
def serve_hub(*, given: dict[str, Any]) -> None:
    """Serve a hub of environments until Ctrl-C: push, find, and install with plain pip or uv.

    The first start prints the token of an administrator, once. SQLite and a folder are enough; a team may use
    PostgreSQL and remote storage. docs/hub.md is the guide.

    \b
    Examples:
      whet hub serve
      whet hub serve --data /srv/hub --port 9000 --upstream https://pypi.org/simple/
      whet hub serve --database postgresql://whet@db/hub --storage s3://bucket/hub
    """
    config = validate(HubConfig, given, "command line")

    def ready(address: str, token: str | None) -> None:
        if token is not None:
            typer.echo(f"administrator's token, shown only now: {token}", err=True)
        if not is_loopback(config.host):
            typer.echo("other machines can reach this; put a proxy with TLS before it, since tokens are sent", err=True)
        typer.echo(f"hub at {address}; Ctrl-C stops it", err=True)

    with extra("hub", "serving a hub"):
        serve(config, ready)


@app.command("recover")
def recover(
    data: Annotated[Path, typer.Option(help="Folder of the hub.", metavar="DIR")] = Path("hub"),
    database: Annotated[str | None, typer.Option(help="As for `whet hub serve`.", metavar="URL")] = None,
) -> None:
    """Print a new token of the administrator, for a hub whose own were lost. All earlier ones end.

    The hub must not be running; run this on its machine.

    \b
    Example:
      whet hub recover --data /srv/hub
    """
    with extra("hub", "a hub"):
        from whet.hub.opening import new_admin_token

        typer.echo(new_admin_token(expanded(data).absolute(), database))


@user_app.command("add")
def add_user(
    user: UserArgument,
    admin: Annotated[bool, typer.Option("--admin", help="Make an administrator of the hub.")] = False,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Add a user, and print the first token, which is shown only now. For administrators.

    \b
    Example:
      whet hub user add ann
    """
    with connect(hub) as connection:
        made = connection.ask(NewUserAnswer, "POST", "/users", json={"name": user, "is_admin": admin})
    if json_output:
        print_json(made.model_dump(exclude={"disabled"}))
        return
    typer.echo(f"added {made.name}; the token (scope admin, of this user only) is shown only now:", err=True)
    typer.echo(made.token)


@user_app.command("list")
def list_users(hub: HubOption = None, json_output: JsonOption = False) -> None:
    """The users of the hub. For administrators."""
    print_items(UserAnswer, "/users", "users", hub, json_output)


@user_app.command("remove")
def remove_user(user: UserArgument, yes: Yes = False, hub: HubOption = None, json_output: JsonOption = False) -> None:
    """Disable a user and revoke the tokens. What the user pushed stays. For administrators.

    \b
    Example:
      whet hub user remove ann
    """
    question = None if yes else f"disable {user} and revoke all tokens of this user?"
    _delete(f"/users{path_of(user)}", hub, json_output, f"{user} is disabled", question, user=user)


@org_app.command("create")
def create_organisation(
    organisation: OrganisationArgument, hub: HubOption = None, json_output: JsonOption = False
) -> None:
    """Create an organisation, whose owner you are.

    \b
    Example:
      whet hub org create my-team
    """
    with connect(hub) as connection:
        made = connection.ask(OrganisationAnswer, "POST", "/organisations", json={"name": organisation})
    print_done(made, json_output, f"created {made.name}; add members with: whet hub member set {made.name} USER ROLE")


@member_app.command("list")
def list_members(organisation: OrganisationArgument, hub: HubOption = None, json_output: JsonOption = False) -> None:
    """The members of an organisation and their roles."""
    print_items(MemberAnswer, f"/owners{path_of(organisation)}/members", "members", hub, json_output)


@member_app.command("set")
def set_member(
    organisation: OrganisationArgument,
    user: UserArgument,
    role: Annotated[
        Literal["viewer", "member", "maintainer", "owner"],
        typer.Argument(metavar="ROLE", help="viewer reads, member pushes, maintainer yanks, owner manages members."),
    ],
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Add a user to an organisation, or change the role there.

    \b
    Example:
      whet hub member set my-team bob member
    """
    with connect(hub) as connection:
        path = f"/owners{path_of(organisation)}/members{path_of(user)}"
        member = connection.ask(MemberAnswer, "PUT", path, json={"role": role})
    print_done(member, json_output, f"{member.user} is {member.role} of {organisation}")


@member_app.command("remove")
def remove_member(
    organisation: OrganisationArgument, user: UserArgument, hub: HubOption = None, json_output: JsonOption = False
) -> None:
    """Remove a user from an organisation."""
    path = f"/owners{path_of(organisation)}/members{path_of(user)}"
    _delete(path, hub, json_output, f"{user} is no member of {organisation} now", user=user, organisation=organisation)


@token_app.command("create")
def create_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the token is for.")],
    scope: Annotated[
        Literal["read", "push", "admin"], typer.Option(help="What it may do, at most what your own token may.")
    ] = "read",
    days: Annotated[int, typer.Option(min=1, max=366, help="Days until it expires.")] = 90,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Create a token of yours and print it, which happens only now. Your own login needs the scope admin.

    \b
    Example:
      whet hub token create "training machine" --days 30
    """
    with connect(hub) as connection:
        body = {"name": name, "scope": scope, "days": days}
        made = connection.ask(NewTokenAnswer, "POST", "/tokens", json=body)
    if json_output:
        print_json(made)
        return
    typer.echo(f"token {made.id} (scope {made.scope}, until {made.expires_at}) is shown only now:", err=True)
    typer.echo(made.token)


@token_app.command("list")
def list_tokens(hub: HubOption = None, json_output: JsonOption = False) -> None:
    """Your tokens that are valid: names, scopes and times. Their texts are shown nowhere."""
    print_items(TokenAnswer, "/tokens", "tokens", hub, json_output)


@token_app.command("revoke")
def revoke_token(
    token: Annotated[str, typer.Argument(metavar="ID", help="Its id, from `whet hub token list`.")],
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Revoke a token of yours at once."""
    _delete(f"/tokens{path_of(token)}", hub, json_output, f"token {token} is revoked", token=token)


@audit_app.command("list")
def list_audit(
    owner: Annotated[
        str | None, typer.Option(help="User or organisation.", show_default="all of it, for administrators")
    ] = None,
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="This many of the newest entries.")] = 50,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """The newest entries of the audit log: who changed what, and when.

    \b
    Examples:
      whet hub audit list
      whet hub audit list --owner my-team -n 10
    """
    path = "/audit" if owner is None else f"/owners{path_of(owner)}/audit"
    with connect(hub) as connection:
        newest = deque(connection.items(AuditAnswer, path), maxlen=last)
    entries = [entry.model_dump() for entry in newest]
    if not json_output:
        entries = [{**entry, "detail": _in_words(entry["detail"])} for entry in entries]
    print_result(safe({"entries": entries}), json_output)


@audit_app.command("verify")
def verify_audit(hub: HubOption = None, json_output: JsonOption = False) -> None:
    """Check that no entry of the audit log was changed or removed. Exit code 1 if one was. For administrators."""
    with connect(hub) as connection:
        check = connection.ask(AuditVerification, "GET", "/audit/verification")
    if json_output:
        print_json(check)
    elif check.intact:
        typer.echo(f"the audit log is intact: {check.entries} entries")
    else:
        typer.echo(f"the audit log was changed: entry {check.first_broken} of {check.entries} is not what was written")
    if not check.intact:
        raise typer.Exit(1)


def _in_words(detail: dict[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in detail.items())


def _delete(
    path: str, hub: str | None, json_output: bool, done: str, question: str | None = None, **removed: str
) -> None:
    with connect(hub) as connection:
        if question is not None and not typer.confirm(question, err=True):
            raise typer.Abort
        connection.send("DELETE", f"/api/v1{path}")
    print_done({"removed": removed}, json_output, done)
