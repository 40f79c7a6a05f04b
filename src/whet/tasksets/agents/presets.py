"""The coding agents that whet knows how to run, as data: package, version, command, settings.

A preset points its agent at the model of the rollout, and switches off what would leave the sandbox or would not be
part of the attempt: telemetry, updates, titles of conversations. In its texts stand

    {root}     where the agent's package is shown in the sandbox
    {url}      the address of the rollout's model, without /v1
    {key}      the key of the rollout's model
    {home}     the home directory in the sandbox
    {task}     what is to be done
    {context}  tokens of prompt and answer together that the agent may count on
    {output}   tokens of an answer

Versions are those that `tests/tasksets/agents` runs unmodified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from whet.errors import ConfigError

# Runs a module from a folder, without showing that folder to the programs that the module starts.
RUN_MODULE = """import runpy, sys
sys.path.insert(0, sys.argv[1])
del sys.argv[:2]
runpy.run_module(sys.argv[0], {}, "__main__", True)"""


@dataclass(frozen=True, slots=True)
class AgentPreset:
    """A coding agent: what to install, how to start it, and what its requests look like."""

    name: str
    registry: Literal["npm", "pypi", "whet"]
    package: str
    version: str
    api: Literal["chat", "responses", "messages"]
    command: tuple[str, ...]
    about: str  # what it leaves out here, and what is special about its requests
    stdin: str = ""
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # path below home: content
    programs: tuple[str, ...] = ()  # of this machine
    requirements: tuple[str, ...] = ()  # packages that it needs and does not declare


_MINI_SWE_AGENT = AgentPreset(
    name="mini-swe-agent",
    registry="pypi",
    package="mini-swe-agent",
    version="2.4.6",
    requirements=("mcp",),  # of its LiteLLM
    api="chat",
    command=(
        *("python3", "-c", RUN_MODULE, "{root}", "minisweagent.run.mini"),
        *("-y", "--exit-immediately", "--model", "openai/policy", "--task={task}"),
    ),
    env={
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
    about="One conversation, one tool: bash.",
)
_BASH = AgentPreset(
    name="bash",
    registry="whet",
    package="",
    version="",
    api="chat",
    command=("python3", "{home}/.whet-agent.py"),
    about="whet's own: the model, a shell and no system prompt; args = ['--fenced'] for models without tool calls.",
)
AGENTS: Mapping[str, AgentPreset] = {preset.name: preset for preset in (_BASH, _MINI_SWE_AGENT)}


def find_agent(name: str) -> AgentPreset:
    """Raises `ConfigError`, with the list, for an agent that is unknown."""
    if name not in AGENTS:
        raise ConfigError(f"there is no agent '{name}'; there are: {', '.join(AGENTS)}.")
    return AGENTS[name]
