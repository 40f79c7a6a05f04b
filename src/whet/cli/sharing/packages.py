"""`whet env push`, `pull`, `info`, `inspect`, `status`: packages of environments, and a hub."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from whet.authoring.install import environment_here
from whet.authoring.review.findings import Report
from whet.cli.output import JsonOption, print_json, print_result, progress_bar
from whet.cli.sharing.common import HubOption, IdArgument, hub_id, safe
from whet.cli.sharing.versions import watched
from whet.envs.loading import LOCAL_FOLDER
from whet.errors import ConfigError
from whet.hub.answers import ContentEntry, VersionAnswer
from whet.hub.client import fetch, publish
from whet.hub.client.connection import HubRequestError, connect, path_of
from whet.hub.client.fetch import HubId, find_version, version_path
from whet.hub.client.package import Built, PackageSource, find_source, uncommitted
from whet.system.files import expanded
from whet.system.terminal import safe_lines, safe_text

SHOWN_FILES = 12

app = typer.Typer(rich_markup_mode=None)


@app.command("push")
def push(
    environment: Annotated[
        str | None, typer.Argument(metavar="ENV", help="Folder of the package, or its name in environments/.")
    ] = None,
    path: Annotated[
        Path | None, typer.Option(help="Folder of the package.", metavar="DIR", show_default="this one")
    ] = None,
    owner: Annotated[
        str | None, typer.Option(help="User or organisation to push to.", show_default="`whet config`'s, or you")
    ] = None,
    visibility: Annotated[
        Literal["PUBLIC", "PRIVATE"] | None,
        typer.Option(help="Of a new environment.", show_default="PRIVATE", case_sensitive=False),
    ] = None,
    auto_bump: Annotated[
        bool, typer.Option("--auto-bump", help="Raise the version in pyproject.toml where this one is on the hub.")
    ] = False,
    allow_dirty: Annotated[
        bool, typer.Option("--allow-dirty", help="Push a folder with changes that git has no commit of.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Refuse a package in which `whet env check` finds errors.")
    ] = True,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the hub has tried it out; exit 1 if that fails.")
    ] = False,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Build a package, show what is in it, and upload it to the hub as a new version.

    A version is there for ever as it is: pushing the same bytes again changes nothing, other bytes are refused. An
    upload that breaks off continues where it was when the command is given again.

    \b
    Examples:
      whet env push
      whet env push word-game --visibility PUBLIC
      whet env push --path environments/word_game --owner my-team --auto-bump
    """
    if environment is not None and path is not None:
        raise ConfigError("name the package or give --path, not both.")
    source = find_source(environment or str(path or "."))
    options = publish.Options(visibility, auto_bump, allow_dirty, check)
    with connect(hub) as connection, progress_bar(quiet=json_output or not sys.stderr.isatty()) as progress:
        if connection.token is None:
            raise ConfigError(f"pushing needs a login: whet login --hub {connection.url}")
        owner = owner or publish.default_owner(connection)
        publish.refuse_unready(source, options, lambda report: show_findings(report, quiet=json_output))
        preview = _no_preview if json_output else _preview
        say = _say_aside if json_output else typer.echo
        pushed = publish.push(connection, owner, source, options, preview=preview, say=say, progress=progress)
        version = pushed.version
        action = None
        if wait and version.action is not None:
            action = watched(connection, str(version.action.id), quiet=json_output)
    if json_output:
        print_json({"new": pushed.new, **version.model_dump(), **({"action": action.model_dump()} if action else {})})
    else:
        typer.echo(f"{'pushed' if pushed.new else 'unchanged on the hub:'} {version.id} ({version.visibility})")
        typer.echo(f"  install it with: whet env install {version.id}")
        if action is None and version.action is not None:
            typer.echo(f"  how the hub tries it out: whet env action logs {version.id} --follow")
    if action is not None and action.state == "failed":
        raise typer.Exit(1)


def show_findings(report: Report, quiet: bool) -> None:
    """Errors and warnings of a review; on standard error where standard output is JSON."""
    for finding in report.findings:
        if finding.severity != "note":
            typer.echo(f"{finding.severity}: {safe_text(finding.message)}", err=quiet)


def _preview(source: PackageSource, built: Built) -> None:
    total = sum(size for _, size in built.wheel.files)
    typer.echo(f"{source.name} {source.version}: {len(built.wheel.files)} files, {_size(total)}")
    for name, size in sorted(built.wheel.files, key=lambda file: -file[1])[:SHOWN_FILES]:
        typer.echo(f"  {_size(size):>9}  {safe_text(name)}")
    if len(built.wheel.files) > SHOWN_FILES:
        typer.echo(f"  and {len(built.wheel.files) - SHOWN_FILES} smaller ones")
    for archive in (built.wheel, built.sdist):
        typer.echo(f"uploads {archive.path.name} ({_size(archive.size)}, sha256 {archive.sha256[:12]}...)")
    _warn(built)


def _no_preview(source: PackageSource, built: Built) -> None:
    _warn(built)


def _warn(built: Built) -> None:
    for warning in built.warnings:
        typer.echo(f"warning: {safe_text(warning, 300)}", err=True)


def _say_aside(text: str) -> None:
    typer.echo(text, err=True)


def _size(size: int) -> str:
    return f"{size} B" if size < 1024 else f"{size / 1024:.1f} KiB" if size < 1 << 20 else f"{size / (1 << 20):.1f} MiB"


@app.command("pull")
def pull(
    environment: IdArgument,
    path: Annotated[
        Path | None, typer.Option(help="New folder for it.", metavar="DIR", show_default="environments/NAME")
    ] = None,
    hub: HubOption = None,
) -> None:
    """Download an environment's source, to read or to change. It is not installed.

    \b
    Examples:
      whet env pull alice/word-game
      whet env pull alice/word-game@1.2.0 --path ~/word-game
    """
    with connect(hub) as connection:
        version = find_version(connection, hub_id(environment))
        target = expanded(path) if path is not None else Path(LOCAL_FOLDER, version.module)
        fetch.pull(connection, version, target)
    typer.echo(f"pulled {version.id} into {target}/")


@app.command("info")
def info(
    environment: Annotated[
        str, typer.Argument(metavar="ENV", help="Its name here, or its id on the hub: OWNER/NAME[@VERSION].")
    ],
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """What is known of an environment: version, requirements, where it came from. Of one on the hub: files with hashes,
    and how it was tried out.

    A name alone is that of a package that is installed, or of a folder in environments/; no hub is reached for it.

    \b
    Examples:
      whet env info word-game
      whet env info alice/word-game@1.2.0
    """
    here = environment_here(environment) if hub is None else None
    if here is not None:
        print_result(safe(here), json_output)
        return
    with connect(hub) as connection:
        version = find_version(connection, hub_id(environment))
    facts = version.model_dump()
    if not json_output:
        facts["action"] = version.action.state if version.action else None
        facts["yanked"] = (version.yanked.reason or "yes") if version.yanked else None
        facts["files"] = [file.model_dump(exclude={"url"}) for file in version.files]
        facts |= {"install": f"whet env install {version.id}"}
        del facts["requirement"], facts["url"]
    print_result(safe(facts), json_output)


@app.command("inspect")
def inspect(
    environment: IdArgument,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="A file to print.", show_default="a list")] = None,
    source: Annotated[bool, typer.Option("--source", help="Look into the source archive, not the wheel.")] = False,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Look at the files of a version without installing it.

    \b
    Examples:
      whet env inspect alice/word-game
      whet env inspect alice/word-game@1.2.0 word_game/__init__.py
    """
    archive = "sdist" if source else "wheel"
    with connect(hub) as connection:
        version = find_version(connection, hub_id(environment))
        contents = f"{version_path(version)}/contents"
        if file is None:
            entries = connection.items(ContentEntry, contents, archive=archive)
            print_result(safe({"files": [entry.model_dump() for entry in entries]}), json_output)
            return
        inner = path_of(*file.split("/"))
        answer = connection.send(
            "GET", f"/api/v1{contents}{inner}", params={"archive": archive}, headers={"Accept": "*/*"}
        )
    if json_output:
        print_json({"path": file, "text": answer.text})
        return
    for line in safe_lines(answer.text):
        typer.echo(line)


@app.command("status")
def status(
    environment: Annotated[
        str, typer.Argument(metavar="ENV", help="Folder of the package, or its name in environments/.")
    ] = ".",
    owner: Annotated[str | None, typer.Option(help="User or organisation it is pushed to.")] = None,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Compare a package here with the hub: its version, the newest there, and what is not committed.

    \b
    Example:
      whet env status word-game
    """
    source = find_source(environment)
    with connect(hub) as connection:
        wanted = HubId.parse(f"{owner or publish.default_owner(connection)}/{source.name}")
        try:
            there = list(connection.items(VersionAnswer, f"{wanted.path}/versions"))
        except HubRequestError as error:
            if error.code != "not_found":
                raise
            there = []
    own = next((version for version in there if version.version == source.version), None)
    print_result(
        safe(
            {
                "id": str(wanted),
                "folder": str(source.folder),
                "version here": source.version,
                "on the hub": "yes" if own else "no",
                "versions there": [version.version for version in there],
                "tried out": own.action.state if own and own.action else None,
                "not committed": len(uncommitted(source.folder)),
            }
        ),
        json_output,
    )
