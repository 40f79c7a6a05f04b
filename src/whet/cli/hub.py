"""`whet hub`: a server on which environments are shared, and its users."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from whet.cli.options import config_options
from whet.cli.output import extra
from whet.cli.sharing.administration import audit_app, member_app, org_app, token_app, user_app
from whet.config import options_of, validate
from whet.hub.serve import HubConfig, serve
from whet.system.offline import is_loopback

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

        typer.echo(new_admin_token(data.expanduser().absolute(), database))
