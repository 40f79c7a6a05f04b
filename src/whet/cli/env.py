"""`whet env`: make an environment's package, review one, install one, list those there are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whet.authoring.scaffold import Kind
from whet.cli.output import JsonOption, json_object, print_json, print_result
from whet.cli.sharing import packages
from whet.cli.sharing.common import HubOption, safe
from whet.cli.sharing.keys import secret_app, var_app
from whet.cli.sharing.versions import action_app, version_app

app = typer.Typer(rich_markup_mode=None)
app.add_typer(packages.app)
app.add_typer(version_app, name="version", help="Versions on the hub: list, yank, delete.")
app.add_typer(action_app, name="action", help="How the hub tried a version out: list, logs, retry.")
app.add_typer(secret_app, name="secret", help="Secrets of an environment on the hub: names are shown, values never.")
app.add_typer(var_app, name="var", help="Variables of an environment on the hub.")


@app.command("init")
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new environment's id, such as word-game.")],
    kind: Annotated[Kind, typer.Option("--kind", "-k", help="Template to begin with.")] = "single",
    path: Annotated[
        Path | None,
        typer.Option(help="Folder to make the package's folder in.", show_default="environments", metavar="DIR"),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Write the package of a new environment, which runs at once.

    It has tasks, a reward, tests, a README and a training config; change them one by one into your own.

    \b
    Examples:
      whet env init word-game
      whet env init word-game --kind tool
      whet env init word-game --kind multi --path ~/my-environments
    """
    from whet.authoring.scaffold import init_package

    made = init_package(name, kind, path)
    if json_output:
        print_json(made)
        return
    typer.echo(f"made {made.folder}/")
    for file in made.files:
        typer.echo(f"  {file}")
    typer.echo("next:")
    for command in made.commands:
        typer.echo(f"  {command}")


@app.command("check")
def check(
    environment: Annotated[str, typer.Argument(metavar="ENV", help="Id of an environment, or a path to one.")],
    env_args: Annotated[
        str, typer.Option("--env-args", "-a", help="Arguments of load_environment.", metavar="JSON")
    ] = "{}",
    tasks: Annotated[int, typer.Option("--num-examples", "-n", help="Tasks that scripted models attempt.")] = 5,
    timeout: Annotated[float, typer.Option(help="Seconds for all of it.")] = 300.0,
    sandbox: Annotated[
        bool,
        typer.Option(
            "--sandbox/--no-sandbox",
            help="Run the package's code in bubblewrap, without network, home or keys; or here, with your rights.",
        ),
    ] = True,
    json_output: JsonOption = False,
) -> None:
    """Review a package and print what to fix. Exit code 1 if there are errors.

    This runs the package's code, in a sandbox by default. Scripted models attempt its tasks, with right
    answers and with answers without merit, which no reward should accept. docs/authoring.md explains the codes.

    \b
    Examples:
      whet env check word-game
      whet env check ./environments/word_game -n 20
      whet env check word-game -a '{"max_length": 9}' --json
    """
    from whet.authoring.review.check import check_environment, print_report

    args = json_object("--env-args", env_args)
    report = check_environment(environment, args, tasks=tasks, timeout_s=timeout, sandbox=sandbox)
    if json_output:
        print_json({"ok": report.ok, **report.as_dict()})
    else:
        print_report(report)
    if not report.ok:
        raise typer.Exit(1)


@app.command("install")
def install(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="ENV...", help="Paths, folders in environments/, OWNER/NAME[@VERSION], URLs, or names for pip."
        ),
    ],
    editable: Annotated[
        bool, typer.Option("--editable", "-e", help="Install folders so that their edits count at once.")
    ] = False,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Install environments into this Python, with what they require, by pip.

    For an environment written for verifiers 0.1, verifiers itself is left out: whet replaces it. Installing may
    run the package's build code. OWNER/NAME comes from the hub of `whet login`, by URL and hash.

    \b
    Examples:
      whet env install ./my-environments/word_game -e
      whet env install word-game==1.2
      whet env install alice/word-game@1.2
    """
    from whet.hub.client.install import install as install_from_anywhere

    done = [install_from_anywhere(target, editable=editable, hub=hub) for target in targets]
    if json_output:
        print_json(done)
        return
    for one in done:
        how = "editable, " if one.editable else ""
        typer.echo(f"installed {one.id} {one.version} ({how}{one.source})")
        if one.dependencies:
            typer.echo(f"  with {', '.join(one.dependencies)}")
        if one.left_out:
            typer.echo(f"  without {', '.join(one.left_out)}: whet replaces it")
        for before in one.replaced:
            typer.echo(f"  instead of the editable install of {before}; edits there count no more (again: -e FOLDER)")


@app.command("uninstall")
def uninstall(
    names: Annotated[list[str], typer.Argument(metavar="ENV...", help="Ids of environments that are installed.")],
) -> None:
    """Remove environments from this Python. What they required stays.

    \b
    Example:
      whet env uninstall word-game
    """
    from whet.authoring.install import uninstall_environment

    for name in names:
        typer.echo(f"removed {uninstall_environment(name)}")


@app.command("list")
def list_environments(
    on_hub: Annotated[bool, typer.Option("--on-hub", help="Those of the hub that you may read.")] = False,
    owner: Annotated[str | None, typer.Option(help="Those of this owner on the hub.")] = None,
    search: Annotated[str | None, typer.Option(help="Those on the hub with this text in name or summary.")] = None,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """The environments that are found by their id here, installed or in environments/; or those of the hub.

    \b
    Examples:
      whet env list
      whet env list --owner my-team
      whet env list --search word --json
    """
    from whet.authoring.listing import environments_here

    if on_hub or owner or search or hub:
        _list_hub(owner, search, hub, json_output)
        return
    found = environments_here()
    if not found and not json_output:
        typer.echo("no environments here. Make one with: whet env init NAME")
        return
    print_result({"environments": found}, json_output)


def _list_hub(owner: str | None, search: str | None, hub: str | None, json_output: bool) -> None:
    from whet.hub.client.answers import EnvironmentAnswer
    from whet.hub.client.connection import connect

    with connect(hub) as connection:
        found = list(connection.items(EnvironmentAnswer, "/environments", owner=owner, search=search))
    if not found and not json_output:
        typer.echo(f"no such environments on {connection.url}")
        return
    rows = [
        environment.model_dump(include={"id", "latest", "visibility", "downloads", "summary"}) for environment in found
    ]
    print_result(
        safe({"environments": [environment.model_dump() for environment in found] if json_output else rows}),
        json_output,
    )
