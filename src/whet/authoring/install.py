"""`whet env install`: a package of an environment, into this Python, by pip.

A package written for `verifiers` 0.1 runs on whet, so `verifiers` is not installed for it. pip works out what else
to install while it is offered empty packages of that name, and then installs that list without
them. whet itself stays the one that runs: all wheels are made first, and one that has files of others installs nothing.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from whet import __version__
from whet.authoring.wheels import check_wheels
from whet.compat.alias import CONTRACT_VERSION
from whet.compat.gaps import may_be_of_the_contract
from whet.envs.identity.ids import parse_id
from whet.envs.identity.installed import installed_package
from whet.envs.loading import LOCAL_FOLDER
from whet.errors import ConfigError
from whet.parsing import parse_toml
from whet.system.files import expanded

REPLACED = "verifiers"
STAND_INS = [f"0.1.{patch}+whet" for patch in range(int(CONTRACT_VERSION.rpartition(".")[2]) + 1)]


@dataclass(frozen=True, slots=True)
class Installed:
    """What was done for one package."""

    id: str
    version: str
    source: str  # a path, or a requirement that an index answered
    editable: bool
    dependencies: tuple[str, ...]  # installed with it
    left_out: tuple[str, ...]  # replaced by whet
    replaced: tuple[str, ...] = ()  # editable installs that are no more: "word-game from file:///FOLDER"


@dataclass(frozen=True, slots=True)
class Pip:
    """The pip that is started, and what it installs into."""

    command: tuple[str, ...] = (sys.executable, "-m", "pip")
    variables: Mapping[str, str] | None = None  # of its environment; None: those of this process
    behind: tuple[str, ...] = ()
    """Folders of packages that imports search after those that it installs into."""

    def run(self, arguments: Sequence[str]) -> None:
        """Raises `ConfigError` with what pip said."""
        command = [*self.command, "--disable-pip-version-check", "--no-input", "--quiet", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=self.variables)
        if done.returncode != 0:
            lines = [line for line in done.stderr.strip().splitlines() if line.strip()][-8:]
            raise ConfigError("\n".join(["pip could not install that. It said:", *lines]))


def install_environment(
    target: str, *, editable: bool = False, variables: Mapping[str, str] | None = None
) -> Installed:
    """Install a package from a folder, an archive, or an index.

    Args:
        target: An id of an environment (`envs/identity/ids.py`) without an owner, or a requirement for pip such as
            `word-game==1.2`. A folder of its name, here or in `environments/`, comes before a package in an index,
            also for `Word-Game` and `word-game[dev]`.
        editable: Install a folder so that its edits count at once.
        variables: The environment variables of pip, by default those of this process.

    Raises `ConfigError` where pip cannot, with what it said, where the package wants another `verifiers`, and where a
    wheel has files that are not its own (`wheels.py`).
    """
    # not importlib.util.find_spec: it has setuptools take its distutils back for good, and torch.compile fails
    if importlib.machinery.PathFinder.find_spec("pip") is None:
        raise ConfigError(f"there is no pip in {sys.prefix}. Add it with: {sys.executable} -m ensurepip")
    base, extras = _divided(target)
    source = _source(base, target)
    if editable and not Path(source).is_dir():
        raise ConfigError(f"{target} is not a folder, so it cannot be installed with -e.")
    whole = f"{source}{extras}" if source != target else target
    before = _editable_installs()
    [installed], dependencies, left_out = install_sources([whole], Pip(variables=variables), editable=editable)
    if editable:
        before = {name: url for name, url in before.items() if url != Path(source).as_uri()}
    metadata = installed["metadata"]
    return Installed(
        metadata["name"],
        metadata["version"],
        whole,
        editable,
        tuple(f"{one['metadata']['name']} {one['metadata']['version']}" for one in dependencies),
        tuple(dict.fromkeys(left_out)),
        tuple(f"{name} from {before[name]}" for name in map(_plain, [installed, *dependencies]) if name in before),
    )


Items = list[dict[str, Any]]
"""What pip's report says of packages."""


def install_sources(sources: Sequence[str], pip: Pip, *, editable: bool = False) -> tuple[Items, Items, list[str]]:
    """Install packages from folders, archives, URLs or an index: those, what they brought, and what whet replaces."""
    items = _resolve(["--no-deps", "--ignore-installed", *sources], pip)
    names = {_plain(one) for one in items}
    divided = [
        divide(one["metadata"].get("requires_dist", []), one["metadata"]["name"], one.get("requested_extras", ()))
        for one in items
    ]
    wanted, left_out = ([line for lines in part for line in lines] for part in zip(*divided, strict=True))
    dependencies = [one for one in _resolve(wanted, pip) if _plain(one) not in {REPLACED, *names}] if wanted else []
    for one in dependencies:
        left_out += divide(one["metadata"].get("requires_dist", []), one["metadata"]["name"])[1]
    with tempfile.TemporaryDirectory(prefix="whet-install-") as folder:
        pip.run(["wheel", "--no-deps", "--wheel-dir", folder, *map(_exactly, dependencies), *sources])
        check_wheels(sorted(Path(folder).glob("*.whl")), pip.behind)
        # By name, so that pip records no path of a file that will be gone.
        these = ["--no-index", "--find-links", folder]
        if dependencies:
            pip.run(["install", "--no-deps", *these, *map(_by_name, dependencies)])
        if editable:
            pip.run(["install", "--no-deps", "--force-reinstall", "-e", *sources])
        elif " @ " in sources[0]:  # by URL and hash, which pip records: what an id is verified against
            pip.run(["install", "--no-deps", "--force-reinstall", *sources])
        else:
            pip.run(["install", "--no-deps", "--force-reinstall", *these, *map(_by_name, items)])
    return items, dependencies, left_out


def uninstall_environment(name: str) -> str:
    """Remove an installed environment; returns its name and version. Raises `ConfigError` where it is none."""
    plain = str(canonicalize_name(parse_id(name).name))
    installed = installed_environments().get(plain)
    if installed is None:
        raise ConfigError(f"no environment '{name}' is installed. `whet env list` has those that are.")
    Pip().run(["uninstall", "--yes", plain])
    return f"{plain} {installed['version']}"


def _editable_installs() -> dict[str, str]:
    """The addresses of the folders that packages are installed from with -e, by name."""
    installs = {}
    for distribution in importlib.metadata.distributions():
        if '"editable"' in (distribution.read_text("direct_url.json") or ""):
            package = installed_package(distribution.name)
            if package is not None and package.editable:
                installs[package.name] = str(package.url)
    return installs


def _divided(target: str) -> tuple[str, str]:
    """A folder or a name, and its extras: `word-game[dev]`. Extras of anything else stay where they are."""
    match = re.fullmatch(r"([^\[\]]+)(\[[^\[\]]*\])", target)
    return (target, "") if match is None or expanded(target).exists() else (match[1], match[2])


def _source(base: str, target: str) -> str:
    """The folder or file of `base`, which is `target` without extras; or what pip is given instead."""
    path = expanded(base)
    if path.exists():
        return str(path.resolve())
    if target.startswith((".", "/", "~")):
        raise ConfigError(f"{path} does not exist.")
    try:
        if "/" not in target and "@" not in target:
            Requirement(target)
            if not any(mark in base for mark in "=<>~!; "):
                name = canonicalize_name(parse_id(base).name)
                for root in (Path(LOCAL_FOLDER), Path()):
                    for folder in sorted(root.glob("*/")):
                        known = root.name or (folder / "pyproject.toml").is_file()
                        if known and folder.is_dir() and canonicalize_name(folder.name) == name:
                            return str(folder.resolve())
            return target
    except InvalidRequirement:
        raise ConfigError(
            f"'{target}' is neither a path nor a package's name. Give a folder, or a name such as word-game==1.2."
        ) from None
    wanted = parse_id(target)
    if wanted.contract is not None:
        raise ConfigError(f"'{target}' needs no installation by whet; pip installs packages of {wanted.contract}.")
    if wanted.owner is not None:
        raise ConfigError(f"'{target}' is an environment of a hub. Install it with: whet env install {target}")
    return wanted.requirement if wanted.url is not None else f"{wanted.name}=={wanted.version}"


def divide(lines: Sequence[str], package: str, extras: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """A package's requirements on this machine: those to install, and those that whet replaces.

    Raises `ConfigError` where the package wants a `verifiers` of another contract.
    """
    kept, replaced = [], []
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        requirement.marker = None
        if canonicalize_name(requirement.name) != REPLACED:
            kept.append(str(requirement))
            continue
        if not may_be_of_the_contract(requirement):
            raise ConfigError(
                f"{package} requires {requirement}, and whet replaces {REPLACED} 0.1 only. "
                "Ask for an older version of the package."
            )
        replaced.append(str(requirement))
    return kept, replaced


def _resolve(arguments: Sequence[str], pip: Pip) -> Items:
    """What pip would install for these arguments, as its report has it; nothing that is there already."""
    with tempfile.TemporaryDirectory(prefix="whet-install-") as folder:
        constraints, report = Path(folder, "constraints.txt"), Path(folder, "report.json")
        constraints.write_text(f"whet=={__version__}\n{REPLACED}<={CONTRACT_VERSION}\n", encoding="utf-8")
        for version in STAND_INS:
            _write_stand_in(Path(folder), version)
        options = ["--dry-run", "--report", str(report), "-c", str(constraints), "--find-links", folder]
        pip.run(["install", *options, *arguments])
        items: Items = json.loads(report.read_text(encoding="utf-8"))["install"]
    return items


def _write_stand_in(folder: Path, version: str) -> None:
    """A wheel of that name and version with nothing in it. The local part makes pip prefer it to the real one."""
    info = f"{REPLACED}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {REPLACED}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: whet\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{REPLACED}-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


def _plain(item: Mapping[str, Any]) -> str:
    return str(canonicalize_name(item["metadata"]["name"]))


def _exactly(item: Mapping[str, Any]) -> str:
    """The requirement that brings what was resolved and nothing else."""
    direct = f"{item['metadata']['name']} @ {item['download_info']['url']}"
    return direct if item.get("is_direct") else _by_name(item)


def _by_name(item: Mapping[str, Any]) -> str:
    return f"{item['metadata']['name']}=={item['metadata']['version']}"


# `whet env list`: the environments that an id finds here. Nothing of them is imported.

CONTRACTS = frozenset({"whet", "verifiers"})


def environments_here() -> list[dict[str, str]]:
    """id, version, where and description of each, by id. An installed one hides a folder of its name."""
    environments = {**_local(), **installed_environments()}
    return [environments[name] for name in sorted(environments)]


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
    environments = {}
    for file in sorted(Path(LOCAL_FOLDER).glob("*/pyproject.toml")):
        try:
            project = parse_toml(file.read_text(encoding="utf-8")).get("project", {})
        except (OSError, ValueError):
            project = None
        if not isinstance(project, dict):
            project = {"description": "its pyproject.toml cannot be read"}
        name = file.parent.name.replace("_", "-")
        environments[name] = _row(name, project.get("version"), str(file.parent), project.get("description"))
    return environments


def installed_environments() -> dict[str, dict[str, str]]:
    """The installed packages that require whet or the library that it replaces, by id."""
    environments = {}
    for distribution in importlib.metadata.distributions():
        name = canonicalize_name(distribution.metadata["Name"] or "")
        if name and name not in CONTRACTS and _needs(distribution) & CONTRACTS:
            environments[str(name)] = _row(name, distribution.version, "installed", distribution.metadata["Summary"])
    return environments


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
