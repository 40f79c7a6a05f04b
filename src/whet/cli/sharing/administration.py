"""`whet hub user`, `org`, `member`, `token`, `audit`: who may do what on a hub, and who did."""

from __future__ import annotations

from collections import deque
from typing import Annotated, Literal

import typer

from whet.cli.output import JsonOption, print_json, print_result
from whet.cli.sharing.common import HubOption, safe

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="Name of a user.")]
OrganisationArgument = Annotated[str, typer.Argument(metavar="ORG", help="Name of an organisation.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

user_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
org_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
member_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
token_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
audit_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


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
    from whet.hub.answers import NewUserAnswer
    from whet.hub.client.connection import connect

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
    from whet.hub.answers import UserAnswer
    from whet.hub.client.connection import connect

    with connect(hub) as connection:
        users = list(connection.items(UserAnswer, "/users"))
    print_result(safe({"users": [user.model_dump() for user in users]}), json_output)


@user_app.command("remove")
def remove_user(user: UserArgument, yes: Yes = False, hub: HubOption = None, json_output: JsonOption = False) -> None:
    """Disable a user and revoke the tokens. What the user pushed stays. For administrators.

    \b
    Example:
      whet hub user remove ann
    """
    from whet.hub.client.connection import path_of

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
    from whet.hub.answers import OrganisationAnswer
    from whet.hub.client.connection import connect

    with connect(hub) as connection:
        made = connection.ask(OrganisationAnswer, "POST", "/organisations", json={"name": organisation})
    if json_output:
        print_json(made)
        return
    typer.echo(f"created {made.name}; add members with: whet hub member set {made.name} USER ROLE")


@member_app.command("list")
def list_members(organisation: OrganisationArgument, hub: HubOption = None, json_output: JsonOption = False) -> None:
    """The members of an organisation and their roles."""
    from whet.hub.answers import MemberAnswer
    from whet.hub.client.connection import connect, path_of

    with connect(hub) as connection:
        members = list(connection.items(MemberAnswer, f"/owners{path_of(organisation)}/members"))
    print_result(safe({"members": [member.model_dump() for member in members]}), json_output)


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
    from whet.hub.answers import MemberAnswer
    from whet.hub.client.connection import connect, path_of

    with connect(hub) as connection:
        path = f"/owners{path_of(organisation)}/members{path_of(user)}"
        member = connection.ask(MemberAnswer, "PUT", path, json={"role": role})
    if json_output:
        print_json(member)
        return
    typer.echo(f"{member.user} is {member.role} of {organisation}")


@member_app.command("remove")
def remove_member(
    organisation: OrganisationArgument, user: UserArgument, hub: HubOption = None, json_output: JsonOption = False
) -> None:
    """Remove a user from an organisation."""
    from whet.hub.client.connection import path_of

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
    from whet.hub.answers import NewTokenAnswer
    from whet.hub.client.connection import connect

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
    from whet.hub.answers import TokenAnswer
    from whet.hub.client.connection import connect

    with connect(hub) as connection:
        tokens = list(connection.items(TokenAnswer, "/tokens"))
    print_result(safe({"tokens": [token.model_dump() for token in tokens]}), json_output)


@token_app.command("revoke")
def revoke_token(
    token: Annotated[str, typer.Argument(metavar="ID", help="Its id, from `whet hub token list`.")],
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Revoke a token of yours at once."""
    from whet.hub.client.connection import path_of

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
    from whet.hub.answers import AuditAnswer
    from whet.hub.client.connection import connect, path_of

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
    from whet.hub.answers import AuditVerification
    from whet.hub.client.connection import connect

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
    from whet.hub.client.connection import connect

    with connect(hub) as connection:
        if question is not None and not typer.confirm(question, err=True):
            raise typer.Abort
        connection.send("DELETE", f"/api/v1{path}")
    if json_output:
        print_json({"removed": removed})
    else:
        typer.echo(done)
