"""`Harness(program={"agent": "codex"})`: a coding agent that others wrote, as it comes from its registry.

It is a command program (`programs/command.py`) whose command, settings and packages come from a preset. The agent's
package is shown read-only in the sandbox, its settings are written to the sandbox's empty home, and the task is the
text of the rollout's prompt. Each request of the agent is a turn of the rollout.
"""

from __future__ import annotations

import asyncio
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from whet.envs.sandboxed import programs as host_programs
from whet.errors import ConfigError
from whet.messages import content_text
from whet.sandboxes.protocol import Sandbox
from whet.tasksets.agents import bash_loop
from whet.tasksets.agents.installed import agent_folder
from whet.tasksets.agents.presets import find_agent
from whet.tasksets.programs.command import CommandConfig, CommandProgram, Invocation
from whet.tasksets.programs.session import Opening
from whet.tasksets.state import TaskState
from whet.tasksets.task import Task

INSIDE = "/opt/whet-agent"
ARCH = {"aarch64": "arm64", "arm64": "arm64"}.get(platform.machine(), "x64")
_PLACE = re.compile(r"\{(root|arch|url|key|home|task|context|output)\}")


class AgentConfig(CommandConfig):
    """`program = {agent = "codex"}`, with the files, folders, setup, artifacts and sandbox of any command."""

    command: list[Any] = Field(default_factory=list, max_length=0, description="That of the agent.")
    agent: str = Field(description="A name of `whet agent list`.")
    version: str = Field("", description="Version of the agent's package; the one of `whet agent list` if empty.")
    context_tokens: int = Field(32_768, ge=256, description="Tokens of context, as the agent's settings have it.")
    output_tokens: int = Field(4096, ge=1, description="Tokens of an answer, as the agent's settings have it.")


class AgentProgram(CommandProgram):
    """A coding agent that attempts tasks."""

    config_type: ClassVar[type[AgentConfig]] = AgentConfig
    config: AgentConfig

    def __init__(self, config: AgentConfig, sandbox: Any, whose: str) -> None:
        self.preset = find_agent(config.agent)
        if config.version and self.preset.registry == "whet":
            raise ConfigError(f"agent '{config.agent}' is whet's own: leave out version.")
        self.version = config.version or self.preset.version
        self._folder: asyncio.Future[Path | None] | None = None
        super().__init__(config, sandbox, whose)

    async def _shown(self) -> Mapping[str, str]:
        if self._folder is None or self._folder.get_loop() is not asyncio.get_running_loop():
            self._folder = asyncio.ensure_future(agent_folder(self.preset, self.version, self._sandboxes.client))
        folder = await asyncio.shield(self._folder)
        own = {} if folder is None else {self._root(folder): str(folder)}
        return {**own, **self._programs()}

    def _programs(self) -> dict[str, str]:
        """Files of the host that the agent is run with, by the path inside."""
        return host_programs.to_be_shown(self.preset.programs)

    async def _invocation(
        self, task: Task, state: TaskState, sandbox: Sandbox, opening: Opening, home: str
    ) -> Invocation:
        folder = None if self._folder is None else self._folder.result()
        values = {
            "root": "" if folder is None else self._root(folder),
            "arch": ARCH,
            "url": self._address(opening),
            "key": opening.key,
            "home": home,
            "task": "" if self.preset.registry == "whet" else instruction(state),  # whet's own reads WHET_TASK
            "context": str(self.config.context_tokens),
            "output": str(self.config.output_tokens),
        }
        preset = self.preset
        for path, content in preset.files.items():
            await sandbox.write(f"{home}/{path}", _filled(content, values).encode())
        if preset.registry == "whet":
            await sandbox.write(f"{home}/.whet-agent.py", Path(bash_loop.__file__).read_bytes())
        started = await super()._invocation(task, state, sandbox, opening, home)
        own = {name: _filled(value, values) for name, value in preset.env.items()}
        if self._programs():
            given = started.variables.get("PATH") or sandbox.spec.env.get("PATH")
            own["PATH"] = host_programs.path_with_shown(given)
        return replace(
            started,
            argv=[*(_filled(word, values) for word in preset.command), *started.argv],
            variables={**own, **started.variables},
            stdin=_filled(preset.stdin, values).encode(),
        )

    def _helper_models(self) -> Sequence[str]:
        return [*self.preset.helper_models, *self.config.helper_models]

    def _called(self, started: Invocation) -> str:
        return f"agent '{self.preset.name}' {self.version}"

    def _root(self, folder: Path) -> str:
        return INSIDE if self._sandboxes.is_boundary else str(folder)


def instruction(state: TaskState) -> str:
    """The rollout's prompt as the one text that an agent is given. Raises `ConfigError` for a longer conversation."""
    messages = [*state["system_prompt"], *state["prompt"]]
    if any(message["role"] not in ("system", "user") for message in messages):
        raise ConfigError("an agent is given one instruction: a prompt with answers of a model cannot be continued.")
    return "\n\n".join(content_text(message["content"]) for message in messages)


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda match: values[match[1]], text)
