"""`whet env list`: the environments that an id finds here. Nothing of them is imported."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from whet.envs.identity.ids import parse_id
from whet.envs.identity.installed import installed_package
from whet.envs.loading import LOCAL_FOLDER
from whet.parsing import parse_toml

CONTRACTS = frozenset({"whet", "verifiers"})


def environments_here() -> list[dict[str, str]]:
    """id, version, where and description of each, by id. An installed one hides a folder of its name."""
    found = {**_local(), **installed_environments()}
    return [found[name] for name in sorted(found)]


def environment_here(name: str) -> dict[str, Any] | None:
    """The row of one environment; of one that is installed, with its origin and its requirements.

    None where there is no such name here, and for an id with an owner or another version, a path or a URL.
    """
    wanted = parse_id(name)
    if wanted.owner or wanted.path or wanted.url:
        return None
    plain = str(canonicalize_name(wanted.name))
    row: dict[str, Any] | None = _local().get(plain)
    package = installed_package(plain)
    if package is not None and _needs(package.distribution) & CONTRACTS:
        row = _row(plain, package.version, "installed", package.distribution.metadata["Summary"])
        row = {**row, "from": package.source, "requires": package.distribution.requires or []}
    return row if row is not None and wanted.version in (None, row["version"]) else None


def _local() -> dict[str, dict[str, str]]:
    """The folders in `environments/` that hold a package."""
    found = {}
    for file in sorted(Path(LOCAL_FOLDER).glob("*/pyproject.toml")):
        try:
            project = parse_toml(file.read_text(encoding="utf-8")).get("project", {})
        except (OSError, ValueError):
            project = None
        if not isinstance(project, dict):
            project = {"description": "its pyproject.toml cannot be read"}
        name = file.parent.name.replace("_", "-")
        found[name] = _row(name, project.get("version"), str(file.parent), project.get("description"))
    return found


def installed_environments() -> dict[str, dict[str, str]]:
    """The installed packages that require whet or the library that it replaces, by id."""
    found = {}
    for distribution in importlib.metadata.distributions():
        name = canonicalize_name(distribution.metadata["Name"] or "")
        if name and name not in CONTRACTS and _needs(distribution) & CONTRACTS:
            found[str(name)] = _row(name, distribution.version, "installed", distribution.metadata["Summary"])
    return found


def _needs(distribution: importlib.metadata.Distribution) -> set[str | None]:
    return {_name(line) for line in distribution.requires or []}


def _name(requirement: str) -> str | None:
    """None for a line that is none: not every build tool checks what it writes."""
    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement:
        return None


def _row(name: str, version: object, where: str, description: object) -> dict[str, str]:
    return {"id": name, "version": str(version or ""), "where": where, "description": str(description or "")}
