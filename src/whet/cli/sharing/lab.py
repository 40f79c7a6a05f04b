"""`whet lab`: a folder to work in, and what is missing on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from whet.cli.output import JsonOption, print_json
from whet.system.terminal import safe_text

app = typer.Typer(rich_markup_mode=None)
SHOWN_KEPT = 8


@app.command("setup")
def setup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the workspace; made if missing.")] = Path(
        "."
    ),
    template: Annotated[
        Literal["examples", "empty"],
        typer.Option("--template", "-t", help="With every example's config and environment, or the folders alone."),
    ] = "examples",
    prime_rl: Annotated[
        bool, typer.Option("--prime-rl", help="For guides that say so: whet trains itself, so nothing is added.")
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Make a workspace: configs, environments, endpoints, a template for keys, and a README with what to run next.

    What is there already is kept as it is.

    \b
    Examples:
      whet lab setup
      whet lab setup ~/work --template empty
    """
    from whet.authoring.workspace import set_up

    made = set_up(folder.expanduser(), template)
    if json_output:
        print_json(made)
        return
    tops = sorted({path.partition("/")[0] for path in made.written})
    typer.echo(f"{made.folder}: wrote {len(made.written)} files" + (f" ({', '.join(tops)})" if tops else ""))
    if made.kept:
        shown = ", ".join(made.kept[:SHOWN_KEPT]) + (" ..." if len(made.kept) > SHOWN_KEPT else "")
        typer.echo(f"kept {len(made.kept)} that were there: {shown}")
    if prime_rl:
        typer.echo("prime-rl is not needed: whet train run FILE trains on this machine")
    typer.echo("next:")
    first = "whet train run configs/rl/quickstart.toml" if template == "examples" else "whet env init word-game"
    for command in ("whet lab doctor", first):
        typer.echo(f"  {command}")


@app.command("doctor")
def doctor(json_output: JsonOption = False) -> None:
    """Say what this machine and this workspace have and what is missing. Exit code 1 if something usual cannot work.

    \b
    Example:
      whet lab doctor
    """
    from whet.hub.client.machine import examine

    checks = []
    for check in examine(Path(".")):
        checks.append(check)
        if not json_output:
            typer.echo(f"{check.state:<8} {check.name:<14} {safe_text(check.finding, 300)}")
            if check.remedy:
                typer.echo(f"         {'':<14} {safe_text(check.remedy, 300)}")
    if json_output:
        print_json({"checks": checks})
    if any(check.state == "missing" for check in checks):
        raise typer.Exit(1)
