"""The agents' packages on this machine: `whet agent install` and `check`, and what a rollout finds or installs.

    CACHE/NAME/VERSION/          of npm: node_modules; of PyPI: its packages for the Python inside the sandbox

Packages are installed without running their scripts. The cache is whet's own: nothing that the user has installed
elsewhere is run, and nothing in it is changed once it is there.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from whet.envs.sandboxed.client import SandboxClient
from whet.envs.sandboxed.packages import cache_directory, filled, install_wheels, target_of
from whet.envs.sandboxed.programs import missing_program
from whet.envs.sandboxed.request import CreateSandboxRequest
from whet.errors import ConfigError
from whet.sandboxes import processes
from whet.tasksets.agents.presets import AgentPreset

INSTALL_S = 900.0
NPM = ("install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """What is on this machine of an agent."""

    agent: str
    package: str
    version: str  # the one that is wanted
    installed: bool
    others: tuple[str, ...]  # versions in the cache besides
    problem: str = ""


def agent_status(preset: AgentPreset) -> AgentStatus:
    """What the cache has of an agent, and what is missing to run it."""
    above = cache_directory("agents") / preset.name
    versions = {path.name for path in above.glob("[!.]*")}
    have = preset.registry == "whet" or preset.version in versions
    missing = next((program for program in preset.programs if shutil.which(program) is None), None)
    problem = "" if have else f"is not installed: whet agent install {preset.name}"
    problem = problem if missing is None else missing_program(missing)
    return AgentStatus(
        preset.name, preset.package, preset.version, have, tuple(sorted(versions - {preset.version})), problem
    )


async def agent_folder(preset: AgentPreset, version: str, client: SandboxClient | None = None) -> Path | None:
    """The folder with an agent's package, installed now unless the cache has it; None for whet's own.

    Raises `ConfigError` with the installer's own words where that fails.
    """
    if preset.registry == "whet":
        return None
    whose = f"agent '{preset.name}' {version}"
    folder = cache_directory("agents") / preset.name / version
    if folder.is_dir():
        return folder
    _log.warning("%s: installing %s from %s into %s", whose, preset.package, preset.registry, folder)

    async def from_npm(fresh: Path) -> None:
        await _npm([f"{preset.package}@{version}", *preset.requirements], fresh, whose)

    async def from_pypi(fresh: Path) -> None:
        made = client or SandboxClient()
        probe = await made.create(CreateSandboxRequest(name="agent"))
        try:
            target = await target_of(await made.sandbox(probe.id))
        finally:
            await made.delete(probe.id)
        await install_wheels([f"{preset.package}=={version}", *preset.requirements], target, fresh, whose)

    return await filled(folder, from_npm if preset.registry == "npm" else from_pypi, whose)


async def _npm(packages: list[str], folder: Path, whose: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise ConfigError(f"{whose}: {missing_program('npm')}")
    command = [npm, *NPM, "--prefix", str(folder), *packages]
    try:
        code, out, err = await processes.run(command, INSTALL_S, umask=0o022, cwd=folder)
    except TimeoutError:
        code, out, err = 1, "", f"npm was not done after {INSTALL_S:g} s."
    if code:
        said = " ".join((err or out).split())[-600:]
        raise ConfigError(f"{whose}: npm could not install {' '.join(packages)}: {said}")
