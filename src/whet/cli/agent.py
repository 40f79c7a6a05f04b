"""`whet agent`: the coding agents that can attempt tasks, and their packages on this machine."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Annotated

import typer

from whet.cli.output import JsonOption, print_result
from whet.tasksets.agents.installed import AgentStatus, agent_folder, agent_status
from whet.tasksets.agents.presets import AGENTS, find_agent

app = typer.Typer(rich_markup_mode=None)
Names = Annotated[list[str] | None, typer.Argument(metavar="[AGENT]...", help="Names of agents; default: all.")]


def _statuses(names: list[str] | None) -> list[AgentStatus]:
    return [agent_status(find_agent(name)) for name in names or AGENTS]


@app.command("list")
def list_agents(json_output: JsonOption = False) -> None:
    """List the agents: package, version, the interface of the model that they use, and whether they are installed.

    \b
    Examples:
      whet agent list
    """
    rows = [
        {
            "agent": status.agent,
            "package": status.package or "(whet's own)",
            "version": status.version,
            "api": AGENTS[status.agent].api,
            "installed": status.installed,
            "about": AGENTS[status.agent].about,
        }
        for status in _statuses(None)
    ]
    print_result({"agents": rows}, json_output)


@app.command("check")
def check(names: Names = None, json_output: JsonOption = False) -> None:
    """Check each agent: its version, other versions that are here, what is missing. Exit code 1 where something is.

    \b
    Examples:
      whet agent check
      whet agent check codex --json
    """
    statuses = _statuses(names)
    print_result({"agents": [dataclasses.asdict(status) for status in statuses]}, json_output)
    if any(status.problem for status in statuses):
        raise typer.Exit(1)


@app.command("install")
def install(names: Names = None, json_output: JsonOption = False) -> None:
    """Install agents from their registries, in the versions of `whet agent list`, into whet's cache.

    A rollout installs what it needs by itself; this does it before, and where a rollout has no network.

    \b
    Examples:
      whet agent install codex mini-swe-agent
    """
    rows = []
    for preset in [find_agent(name) for name in names or AGENTS]:
        folder = asyncio.run(agent_folder(preset, preset.version))
        rows.append({"agent": preset.name, "version": preset.version, "folder": str(folder or "")})
    print_result({"agents": rows}, json_output)
