"""Python packages for sandboxes that have no network: installed once on the host, shown read-only inside.

The list is the environment author's, not the model's. Only wheels are taken, so installing runs no package's code, and
they are chosen for the Python *inside* the sandbox, which need not be the one that runs whet. A set of packages is
kept in a cache directory and used again by later runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.errors import ConfigError
from whet.sandboxes import processes
from whet.sandboxes.protocol import Sandbox
from whet.system.files import user_cache

if TYPE_CHECKING:
    from whet.envs.sandboxed.client import SandboxClient
    from whet.envs.sandboxed.request import CreateSandboxRequest

INSIDE = "/opt/whet-packages"
INSTALL_S = 900.0
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._,-]+\])?([<>=!~]=?[^;@/\s]+)?")
# Printed by the Python inside: its version, machine and C library.
_PROBE = """
import json, os, platform, sys
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
except (AttributeError, OSError, ValueError):
    libc = ""
print(json.dumps([sys.version_info[0], sys.version_info[1], platform.machine(), sys.platform, libc]))
"""


@dataclass(frozen=True, slots=True)
class InstallTarget:
    """The Python that packages are for."""

    version: str  # such as "3.11"
    platforms: tuple[str, ...]  # wheel platform tags it can use; empty = those of this host


class Packages:
    """Packages that all code in the sandboxes of one environment or toolset can import."""

    def __init__(self, requirements: str) -> None:
        """`requirements` is as on pip's command line. Raises ConfigError for what is none."""
        self.requirements = requirements_of(requirements)
        self._folders: dict[str | None, asyncio.Future[Path]] = {}  # by image or root

    async def add_to(self, request: CreateSandboxRequest, client: SandboxClient) -> None:
        """Have the sandbox of `request` contain them. The first sandbox of an image waits until they are installed."""
        if not self.requirements:
            return
        image = request.root or request.docker_image
        done = self._folders.get(image)
        if done is None or (done.get_loop() is not asyncio.get_running_loop() and not _has_result(done)):
            done = self._folders[image] = asyncio.ensure_future(self._install(request, client))
        folder = str(done.result() if _has_result(done) else await asyncio.shield(done))
        inside = folder if client.backend == "subprocess" else INSIDE
        request.read_only = {**request.read_only, inside: folder}
        request.environment_vars = {"PYTHONPATH": inside, **(request.environment_vars or {})}

    async def _install(self, request: CreateSandboxRequest, client: SandboxClient) -> Path:
        probe = await client.create(request.model_copy(update={"start_command": None}))
        try:
            target = await target_of(await client.sandbox(probe.id))
        finally:
            await client.delete(probe.id)
        return await installed(self.requirements, target, cache_directory())


def _has_result(future: asyncio.Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def requirements_of(packages: str) -> list[str]:
    """The requirements in a string such as "numpy sympy>=1.12", as pip would read them on its command line.

    Raises ConfigError for anything but a name with an optional version: options, paths and addresses could install
    what is no wheel, and that would run code of the package on this machine.
    """
    try:
        words = shlex.split(packages)
    except ValueError as error:
        raise ConfigError(f"pip_install_packages={packages!r} cannot be read: {error}.") from error
    for word in words:
        if not _REQUIREMENT.fullmatch(word):
            raise ConfigError(
                f"pip_install_packages: {word!r} is not a package name with an optional version, such as numpy or "
                "'sympy>=1.12'."
            )
    return words


async def target_of(sandbox: Sandbox) -> InstallTarget:
    """Ask a sandbox which Python it has."""
    result = await sandbox.exec(["python3", "-I", "-c", _PROBE])
    try:
        major, minor, machine, system, libc = json.loads(result.stdout)
    except ValueError as error:
        raise ConfigError(
            f"the sandbox has no python3 to install packages for: {result.stderr.strip() or result.describe()}."
        ) from error
    return InstallTarget(f"{major}.{minor}", platform_tags(system, machine, libc))


def platform_tags(system: str, machine: str, libc: str) -> tuple[str, ...]:
    """Wheel platform tags for Linux with this C library ("glibc 2.36", or "" for musl), newest first (PEP 600, 656)."""
    if system != "linux":
        return ()
    if not libc.startswith("glibc 2."):
        return (f"musllinux_1_2_{machine}", f"musllinux_1_1_{machine}")
    newest = int(libc.split()[1].split(".")[1])
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 4, -1)]
    return (*tags, f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}", f"linux_{machine}")


def cache_directory(name: str = "packages") -> Path:
    """Where sets of packages are kept. Root's sandboxes run as a stranger, who cannot look into root's home."""
    if os.geteuid() == 0:
        return Path("/var/cache/whet") / name
    return user_cache(name)


@dataclass(frozen=True, slots=True)
class CachedFolder:
    """A folder of the cache, which is made again when it is needed."""

    path: Path
    mb: float  # on disk
    unused_days: float


def cached_folders() -> list[CachedFolder]:
    """Sets of packages, agents and images of Harbor's tasks, and what was left of those that were not made whole."""
    folders = []
    for name, pattern in (("agents", "*/*"), ("harbor", "*"), ("packages", "*")):
        for path in sorted(cache_directory(name).glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                blocks = sum(one.lstat().st_blocks for one in path.rglob("*"))
                folders.append(CachedFolder(path, blocks * 512 / 1e6, (time.time() - path.stat().st_mtime) / 86_400))
    return folders


def prune(unused_days: float) -> list[CachedFolder]:
    """Remove the folders that were not used for so many days; returns them. Raises ConfigError where one cannot be."""
    old = [one for one in cached_folders() if one.unused_days >= unused_days]
    for one in old:
        try:  # renamed first: another process finds all of it or nothing
            gone = Path(tempfile.mkdtemp(prefix=f".{one.path.name}.", dir=one.path.parent))
            shutil.rmtree(one.path.rename(gone / "pruned").parent)
        except OSError as error:
            raise ConfigError(f"{one.path} cannot be removed from the cache: {error}.") from error
    return old


async def installed(requirements: Sequence[str], target: InstallTarget, cache: Path) -> Path:
    """The folder with these packages for this Python, installed now unless the cache has it.

    Raises ConfigError with pip's own words when that fails.
    """
    about = json.dumps([sorted(requirements), target.version, target.platforms, "programs for any Python"])
    whose = "pip_install_packages"

    async def install(folder: Path) -> None:
        await install_wheels(requirements, target, folder, whose)
        await asyncio.to_thread(_for_any_python, folder / "bin")

    return await filled(cache / hashlib.sha256(about.encode()).hexdigest()[:16], install, whose)


def _for_any_python(programs: Path) -> None:
    """Have the programs of packages run by the Python inside: pip names the one that installed them, outside."""
    for program in sorted(path for path in programs.glob("*") if path.is_file()):
        lines = program.read_bytes().split(b"\n", 3)
        if lines[0] == b"#!/bin/sh" and len(lines) == 4 and lines[1].startswith(b"'''exec'"):  # of a long path
            lines = [b"", lines[3]]
        elif not (lines[0].startswith(b"#!") and b"python" in lines[0]):
            continue
        program.write_bytes(b"\n".join([b"#!/usr/bin/env python3", *lines[1:]]))


async def filled(folder: Path, fill: Callable[[Path], Awaitable[None]], whose: str) -> Path:
    """`folder`, which `fill` makes unless it is there: all of it or nothing. Sandboxes of any user can read it.

    Raises ConfigError, beginning with `whose`, where the cache cannot be written to.
    """
    if folder.is_dir():
        with suppress(OSError):  # of another user
            os.utime(folder)  # when it was last used, for `prune`
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for path in (folder.parent, folder.parent.parent):
            path.chmod(0o755)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise ConfigError(f"{whose}: the cache {folder.parent} cannot be written to: {error}.") from error
    try:
        await fill(fresh)
        fresh.chmod(0o755)
        try:
            fresh.rename(folder)  # all of it or nothing, also with another process at the same
        except OSError:
            if not folder.is_dir():
                raise
        return folder
    finally:
        await asyncio.to_thread(shutil.rmtree, fresh, ignore_errors=True)


async def install_wheels(requirements: Sequence[str], target: InstallTarget, folder: Path, whose: str) -> None:
    """Install packages into a folder. Raises ConfigError, beginning with `whose`, with pip's own words."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    if target.version != f"{sys.version_info.major}.{sys.version_info.minor}":
        command.append("--no-compile")  # byte code of another Python would be of no use
    command += ["--target", str(folder), "--only-binary", ":all:", "--python-version", target.version]
    for platform in target.platforms:
        command += ["--platform", platform]
    try:  # the sandbox's user has to be able to read it all
        code, out, err = await processes.run([*command, *requirements], INSTALL_S, umask=0o022)
    except TimeoutError:
        code, out, err = 1, "", f"pip was not done after {INSTALL_S:g} s."
    if code == 0:
        return
    said = out + err
    names = " ".join(requirements)
    if "No module named pip" in said:
        raise ConfigError(f"{whose}: installing {names} needs pip. Install it with: {sys.executable} -m ensurepip")
    lines = [line for line in said.splitlines() if line.startswith("ERROR:")] or said.splitlines() or ["no message"]
    raise ConfigError(
        f"{whose}: pip could not install {names} as wheels for Python {target.version}: "
        f"{' '.join(line.removeprefix('ERROR:').strip() for line in lines)} "
        "Check the names and versions, and that this machine reaches a package index."
    )
