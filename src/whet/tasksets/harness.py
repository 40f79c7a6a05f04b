"""`Harness`: how a model attempts a task: the chat loop with tools, or a program of the author's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import whet
from whet.envs.config.arguments import nearest
from whet.errors import ConfigError
from whet.tasksets.agents.program import AgentProgram
from whet.tasksets.config import HarnessConfig
from whet.tasksets.part import EnvPart
from whet.tasksets.programs.command import CommandProgram, read_command
from whet.tasksets.refs import resolve_function, resolve_ref
from whet.tasksets.state import NOT_HERE, TaskState
from whet.tasksets.task import Task
from whet.tasksets.taskset import Taskset

PROGRAM_KINDS = ("base", "fn", "command", "agent")
SANDBOX_OPTIONS = (
    *("files", "dirs", "setup", "env", "artifacts", "args", "bindings"),
    *("helper_models", "helper_prompts"),
)
AGENT_OPTIONS = ("version", "context_tokens", "output_tokens")


class Harness(EnvPart):
    """How a model attempts a task: the chat loop with tools, a function, or a program."""

    config_type: ClassVar[type[HarnessConfig]] = HarnessConfig
    """What `config` is read as; a subclass with settings of its own names its own."""

    config: HarnessConfig

    def __init__(
        self,
        program: Any = None,
        system_prompt: Any = None,
        user: Any = None,
        sandbox: Any = None,
        client: Any = None,
        model: str | None = None,
        sampling_args: Mapping[str, Any] | None = None,
        max_turns: int | None = None,
        toolsets: Any = None,
        stops: Any = None,
        setups: Any = None,
        updates: Any = None,
        metrics: Any = None,
        rewards: Any = None,
        advantages: Any = None,
        cleanups: Any = None,
        config: Any = None,
    ) -> None:
        """Make a harness.

        Args:
            program: None is the chat loop with tools. A function, plain or async, or `{"fn": "module:function"}`, takes
                any of task, state and session, and calls the model with `await session.ask(messages)`.
                `{"command": [...]}` is any program, in a sandbox that can reach only its model, and `{"agent": name}` a
                coding agent of `whet agent list`.
            system_prompt: text, or system messages, before every prompt.
            sandbox: settings of the sandbox of a command, as a `SandboxConfig` or a table.
            user: answers for the user where the model calls no tool.
            client: a `Client` or `ClientConfig` for `run`; an environment uses its own.
            model: the model for `run`.
            sampling_args: defaults; those of a rollout take precedence.
            max_turns: model turns after which a rollout ends; 0 or less = no limit. 10 for the chat loop; a program is
                limited only by this argument, its config or its task.
            config: settings, a `config_type` or a mapping. Its lists are added to the arguments; a single value is
                given in one of the two.

        The other arguments, and decorated methods, are those of a `Taskset`.
        """
        arguments = locals()
        self.config = read = type(self).config_type.from_config(config)
        name = type(self).__name__
        if type(self).run is not Harness.run:
            raise ConfigError(f"{name} has a run of its own, which no rollout would go through; make it a program.")
        if read.keep_trajectory_step is not None:
            raise ConfigError(f"{name}: keep_trajectory_step has no effect: every turn of a rollout is kept.")
        self.command: CommandProgram | None = None
        given, of_sandbox = self._either("program", program), self._either("sandbox", sandbox)
        if isinstance(given, Mapping) and (given.get("command") or given.get("agent")):
            kind = AgentProgram if check_keys(given, name) == ["agent"] else CommandProgram
            self.command = read_command(given, of_sandbox, f"{name}.program", kind)
        else:
            refuse_sandbox(of_sandbox, name)
        self.program = read_program(given, name) if self.command is None else self.command.run
        self.client = resolve_ref(self._either("client", client), f"{name}.client")
        self.model: str | None = self._either("model", model)
        self.sampling_args: dict[str, Any] = {**read.sampling_args, **(sampling_args or {})}
        self.system_prompt_merge = read.system_prompt_merge
        self.max_turns = self._either("max_turns", max_turns)
        if not isinstance(self.max_turns, int) or isinstance(self.max_turns, bool):
            raise ConfigError(f"{name}: max_turns is {self.max_turns!r}; it should be a whole number.")
        usual = HarnessConfig.model_fields["max_turns"].default
        self.says_max_turns = max_turns is not None or "max_turns" in read.model_fields_set or self.max_turns != usual
        self.taskset: Taskset | None = None
        self._alone: whet.Env | None = None
        self._read(arguments)

    async def run(self, task: Task | Mapping[str, Any], state: TaskState | None = None) -> TaskState:
        """Attempt and score one task, with this harness's client and model or those of `state`.

        Failures are in `state["error"]`. Group functions do not run.
        """
        if self._alone is None or self._alone.taskset is not self.taskset:
            self._alone = whet.Env(Taskset(source=[]) if self.taskset is None else self.taskset, self)
        return await self._alone.run_task(task, state)

    async def teardown(self) -> None:
        """Close the environment of `run`."""
        if self._alone is not None:
            await self._alone.close()


def read_program(value: Any, name: str) -> Callable[..., Any] | None:
    """The function of a program; None for the chat loop. Raises `ConfigError` for one that cannot be run."""
    value = resolve_ref(value, f"{name}.program")
    if value is None or callable(value):
        program: Callable[..., Any] | None = value
        return program
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}.program is {type(value).__name__}; it should be a function or a table.")
    kinds = check_keys(value, name)
    refuse_sandbox(value.get("sandbox"), f"{name}.program")
    for option in (*SANDBOX_OPTIONS, *AGENT_OPTIONS):
        if value.get(option):
            needed = "an agent" if option in AGENT_OPTIONS else "a command"
            raise ConfigError(f"{name}.program: {option} would have no effect without {needed}.")
    if value.get("tools") not in (None, "callable"):
        raise ConfigError(f"{name}.program: tools = {value['tools']!r}: {NOT_HERE}. Programs have callable tools.")
    return resolve_function(value["fn"], f"{name}.program.fn") if kinds == ["fn"] else None


def check_keys(program: Mapping[str, Any], name: str) -> list[str]:
    """The kind of program that a table describes. Raises `ConfigError` for an unknown key."""
    known = (*PROGRAM_KINDS, "sandbox", "tools", *SANDBOX_OPTIONS, *AGENT_OPTIONS)
    for key in program:
        if key not in known:
            raise ConfigError(f"{name}.program: unknown key '{key}'.{nearest(key, known)}")
    kinds = [kind for kind in PROGRAM_KINDS if program.get(kind)]
    if len(kinds) != 1:
        raise ConfigError(
            f"{name}.program: give one of fn = 'module:function', base = true, command = [...], agent = 'name'."
        )
    return kinds


def refuse_sandbox(sandbox: Any, whose: str) -> None:
    """Only a command runs in a sandbox: a function runs in this process."""
    if sandbox is not None and sandbox is not False:
        raise ConfigError(
            f"{whose} asks for a sandbox, and its program is no command: program = {{command = [...]}}. "
            "Tools can have sandboxes: Toolset(sandbox=...)."
        )
