"""`whet lab`: a folder to work in, and what is missing on this machine."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from packaging.requirements import Requirement

from whet.cli.output import JsonOption, print_json
from whet.clients.endpoints import DEFAULT_FILE, read_endpoints
from whet.config import read_toml
from whet.envs.loading import locate
from whet.errors import SandboxUnavailableError, WhetError
from whet.hub.answers import Identity
from whet.hub.client.connection import connect
from whet.hub.client.settings import hub_is_set
from whet.inference.devices import choose_device
from whet.sandboxes.bubblewrap.backend import BubblewrapBackend
from whet.system.env_files import find_key
from whet.system.files import expanded
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
    from whet.authoring.scaffold import set_up

    made = set_up(expanded(folder), template)
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
    checks = []
    for check in _examine(Path(".")):
        checks.append(check)
        if not json_output:
            typer.echo(f"{check.state:<8} {check.name:<14} {safe_text(check.finding, 300)}")
            if check.remedy:
                typer.echo(f"         {'':<14} {safe_text(check.remedy, 300)}")
    if json_output:
        print_json({"checks": checks})
    if any(check.state == "missing" for check in checks):
        raise typer.Exit(1)


# `whet lab doctor`: what this machine and this workspace have, and what is missing for what.

State = Literal["ok", "note", "missing"]
LEAST_DISK = 5 << 30
"""Free bytes below which a note says so: a run of a small model writes about as much."""
EXTRAS: dict[str, State] = {"train": "missing", "openai": "note", "dashboard": "note", "hub": "note"}
"""Extras that are looked for, and how bad it is without."""


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """One line: `missing` keeps something usual from working, `note` something that not all need."""

    name: str
    state: State
    finding: str
    remedy: str = ""


def _examine(folder: Path) -> Iterator[MachineCheck]:
    """Look at this machine and at the workspace in `folder`, one line after the other."""
    yield MachineCheck("python", "ok", f"{platform.python_version()}, {os.cpu_count()} cores")
    yield from _extras()
    yield _sandbox()
    if importlib.util.find_spec("torch") is not None:
        yield MachineCheck("device", "ok", choose_device("auto"))
    yield _disk(folder)
    yield _build_tool()
    yield from _endpoints(folder / DEFAULT_FILE)
    yield from _configs(folder)
    yield _hub()


def _extras() -> Iterator[MachineCheck]:
    requirements = [Requirement(line) for line in importlib.metadata.requires("whet") or []]
    for extra, without in EXTRAS.items():
        absent = sorted(one.name for one in requirements if _brought_by(one, extra) and not _is_installed(one))
        if absent:
            remedy = f"pip install 'whet[{extra}]'"
            yield MachineCheck(f"extra {extra}", without, f"without {', '.join(absent)}", remedy)
        else:
            yield MachineCheck(f"extra {extra}", "ok", "installed")


def _brought_by(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def _is_installed(requirement: Requirement) -> bool:
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return requirement.specifier.contains(version, prereleases=True)


def _sandbox() -> MachineCheck:
    try:
        asyncio.run(BubblewrapBackend().check())
    except SandboxUnavailableError as error:
        return MachineCheck("sandbox", "missing", "bubblewrap does not start", str(error))
    return MachineCheck("sandbox", "ok", "bubblewrap starts")


def _disk(folder: Path) -> MachineCheck:
    free = shutil.disk_usage(folder).free
    text = f"{free / (1 << 30):.0f} GiB free"
    if free < LEAST_DISK:
        return MachineCheck("disk", "note", text, "Make room before training: checkpoints are as large as the model.")
    return MachineCheck("disk", "ok", text)


def _build_tool() -> MachineCheck:
    if importlib.util.find_spec("build") is not None:
        return MachineCheck("build tool", "ok", "build")
    return MachineCheck("build tool", "note", "none", "whet env push needs one: pip install 'whet[push]'")


def _endpoints(file: Path) -> Iterator[MachineCheck]:
    if not file.exists():
        yield MachineCheck("endpoints", "note", f"no {DEFAULT_FILE}", "whet lab setup")
        return
    try:
        endpoints = read_endpoints(file)
    except WhetError as error:
        yield MachineCheck("endpoints", "missing", str(error))
        return
    unset = sorted({one.client.api_key_var for one in endpoints.values() if not find_key(one.client.api_key_var)})
    if unset:
        remedy = "Set those that you use, in the shell or in a file named by env_file."
        yield MachineCheck("endpoints", "note", f"{len(endpoints)}; not set: {', '.join(unset)}", remedy)
    else:
        yield MachineCheck("endpoints", "ok", f"{len(endpoints)}, with their keys")


def _configs(folder: Path) -> Iterator[MachineCheck]:
    """Whether each config can be read, and the environments that it names are here."""
    files = sorted((folder / "configs").glob("*/*.toml"))
    for file in files:
        try:
            for environment in sorted(_environments(read_toml(file))):
                locate(environment)
        except WhetError as error:
            yield MachineCheck(str(file.relative_to(folder)), "note", str(error))
    if not files:
        yield MachineCheck("configs", "note", "none in configs/", "whet lab setup")


def _environments(value: Any, key: str = "") -> set[str]:
    """The ids of environments in a config: `env_id` anywhere, and `id` in a table `env`."""
    if isinstance(value, list):
        return {identity for item in value for identity in _environments(item, key)}
    if not isinstance(value, dict):
        return set()
    named = {value[name] for name in ("env_id", *(("id",) if key == "env" else ())) if isinstance(value.get(name), str)}
    return named | {identity for name, item in value.items() for identity in _environments(item, name)}


def _hub() -> MachineCheck:
    try:
        if not hub_is_set():
            return MachineCheck("hub", "note", "none is set", "whet login --hub URL, or host one: whet hub serve")
        with connect() as hub:
            if hub.token is None:
                return MachineCheck("hub", "note", f"{hub.url}, without a login", "whet login")
            identity = hub.ask(Identity, "GET", "/whoami")
    except WhetError as error:
        return MachineCheck("hub", "missing", str(error))
    return MachineCheck("hub", "ok", f"{hub.url} as {identity.user}")
