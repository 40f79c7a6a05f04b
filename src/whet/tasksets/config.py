"""Configs of tasksets, harnesses and the environments made of them.

A config can be made from another one, a mapping or keywords; keywords take precedence: `TasksetConfig(given,
taskset_id="x")`. Authors derive their own (`class MyConfig(TasksetConfig): difficulty: int = 1`) and name them as
`config_type` of their `Taskset` or `Harness`. Functions are given as such or as `"package.module:function"`.

Fields and merging follow `verifiers.v1` of 0.1.14. Unlike there, an unknown key is a `ConfigError` with a suggestion.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from whet.config import StrictModel, explain, read_toml
from whet.errors import ConfigError

Stage = Literal["rollout", "group"]
Scope = Literal["rollout", "group", "global"]


class Config(StrictModel):
    """Base class: frozen, strict, and made from another config, a mapping, keywords, or a combination."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def __init__(self, config: Any = None, /, **fields: Any) -> None:
        """Make a config; keywords that are None are ignored. Raises `ConfigError`, one line per mistake."""
        cls = type(self)
        merged = cls._merged(config, {name: value for name, value in fields.items() if value is not None})
        try:
            super().__init__(**merged)
        except ValidationError as error:
            raise ConfigError(explain(cls, error, cls.__name__)) from None

    @classmethod
    def from_config(cls, config: Any = None, /, **fields: Any) -> Self:
        """`config` itself if it is of this class and no field is given, otherwise a new config made from it."""
        return config if isinstance(config, cls) and not fields else cls(config, **fields)

    @classmethod
    def from_toml(cls, path: str | Path, section: str = "") -> Self:
        """The config in a TOML file, or in a `section` of it such as "env.taskset"."""
        data: Any = read_toml(Path(path))
        for name in filter(None, section.split(".")):
            if not isinstance(data, Mapping) or name not in data:
                raise ConfigError(f"{path}: there is no section [{section}].")
            data = data[name]
        return cls(data)

    @classmethod
    def _merged(cls, config: Any, fields: dict[str, Any]) -> dict[str, Any]:
        return {**given_fields(config, cls.__name__), **fields}


class SignalTuning(StrictModel):
    """`scoring.<name>`: changes an existing reward, metric or advantage."""

    weight: float | None = Field(None, description="What the value of a reward is multiplied by.")
    priority: int | None = Field(None, description="Higher runs earlier.")
    stage: Stage | None = Field(None, description="Whether it scores one rollout or a group.")
    skip: bool = Field(False, description="Leave it out.")


class HooksConfig(Config):
    """Functions that tasksets, harnesses and toolsets have."""

    stops: Any = Field(None, description="Functions that end a rollout by returning true.")
    setups: Any = Field(None, description="Functions that prepare a rollout before its first turn.")
    updates: Any = Field(None, description="Functions that change a state before it is scored.")
    cleanups: Any = Field(None, description="Functions that run after a rollout, or after a group, was scored.")


class PartConfig(HooksConfig):
    """Fields of tasksets and harnesses. Lists are added to those of code; a single value is set in one of the two."""

    system_prompt: Any = Field(None, description="Text, or system messages, before every prompt.")
    user: Any = Field(None, description="Function that answers for the user where the model calls no tool.")
    toolsets: Any = Field(None, description="Tools: a list, or a table of named toolsets.")
    metrics: Any = Field(None, description="Functions whose values are recorded.")
    rewards: Any = Field(None, description="Functions whose weighted values are added up to the reward.")
    advantages: Any = Field(None, description="Function that sets the advantages of a group.")
    scoring: dict[str, SignalTuning] = Field(
        default_factory=dict, description="Changes of weight, priority or stage, by name of the function."
    )


class TasksetConfig(PartConfig):
    """`[env.taskset]`: what is attempted."""

    source: Any = Field(None, description="Rows to train on, or a function without arguments that returns them.")
    eval_source: Any = Field(None, description="Rows to evaluate on; those of source if absent.")
    taskset_id: str | None = Field(None, description="Name of the taskset; the class's if absent.")


class SandboxConfig(Config):
    """A sandbox of a toolset, a user or a command."""

    image: str = Field("python:3.11-slim", description="Container image; without meaning for bubblewrap.")
    start_command: str = Field("tail -f /dev/null", description="What keeps a container alive.")
    cpu_cores: float = Field(1.0, description="Cores.")
    memory_gb: float = Field(2.0, description="Memory in GB.")
    disk_size_gb: float = Field(5.0, description="Disk in GB.")
    gpu_count: int = Field(0, description="GPUs.")
    network: list[str] = Field(default_factory=list, description="Hosts it may reach; none by default.")
    network_access: bool = Field(True, description="Of 0.1.14; opens none: network = [hosts] does.")
    timeout_minutes: int = Field(60, description="Minutes until it is closed.")
    workdir: str | None = Field(None, description="Directory in which commands run.")
    writable: list[str] = Field(default_factory=list, description="Empty folders inside to write to, as workdir is.")
    command_timeout: int | None = Field(None, description="Seconds one command may take.")
    packages: list[str] = Field(default_factory=list, description="Python packages to install first.")
    install_timeout: int = Field(300, description="Seconds the installation may take.")
    setup_commands: list[str] = Field(default_factory=list, description="Commands to run first.")
    setup_timeout: int = Field(300, description="Seconds each of them may take.")
    scope: Scope = Field("rollout", description="How long it lives.")
    prefer: Literal["program"] | None = Field(None, description="The program's, else its own; here its own.")

    @field_validator("packages", "setup_commands", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class HarnessConfig(PartConfig):
    """`[env.harness]`: how a model attempts it."""

    program: Any = Field(
        None,
        description="Absent: the chat loop with tools. A function, {fn = 'module:function'}, {command = [...]} "
        "or {agent = name}.",
    )
    max_turns: int = Field(10, description="Model turns after which a rollout ends; 0 or less = no limit.")
    system_prompt_merge: Literal["reject", "concat", "task", "taskset", "harness"] = Field(
        "reject", description="What to do where harness, taskset and task bring more than one system prompt."
    )
    sandbox: Any = Field(None, description="Sandbox of a program that is a command.")
    client: Any = Field(None, description="Client of a harness that is run by itself.")
    model: str | None = Field(None, description="Model of a harness that is run by itself.")
    sampling_args: dict[str, Any] = Field(default_factory=dict, description="Under those that a rollout is given.")
    keep_trajectory_step: Any = Field(None, description="Refused: every turn is kept.")


class ToolsetConfig(HooksConfig):
    """Tools that belong together, and what they need."""

    tools: Any = Field(None, description="Functions, toolsets, or MCP servers ({command = ..., args = [...]}).")
    show: Any = Field(None, description="Names of the tools that the model is shown; all if absent.")
    hide: Any = Field(None, description="Names of the tools that the model is not shown.")
    bindings: dict[str, Any] = Field(
        default_factory=dict, description="'tool.argument' = where its value comes from; the model does not see it."
    )
    objects: dict[str, Any] = Field(default_factory=dict, description="Objects that bindings use, or their makers.")
    write: bool = Field(False, description="Objects belong to one rollout rather than to all.")
    scope: Scope | None = Field(None, description="How long objects live, where `write` does not say it.")
    sandbox: Any = Field(None, description="Sandbox that tools which name `sandbox` are given.")
    teardowns: Any = Field(None, description="Functions that run once, when the environment is closed.")


class MCPToolConfig(Config):
    """An MCP server that is started as a process (stdio transport)."""

    command: str = Field(description="Program to start.")
    args: list[str] = Field(default_factory=list, description="Its arguments.")
    env: dict[str, str] | None = Field(None, description="Environment variables to set.")
    cwd: str | None = Field(None, description="Directory to start it in.")


class UserConfig(Config):
    """The simulated user."""

    fn: Any = Field(description="Function that returns the next user messages; none ends the rollout.")
    scope: Scope = Field("rollout", description="How long its objects live.")
    bindings: dict[str, Any] = Field(default_factory=dict, description="argument = where its value comes from.")
    objects: dict[str, Any] = Field(default_factory=dict, description="Objects that bindings use, or their makers.")
    sandbox: Any = Field(None, description="Sandbox that it is given where it names `sandbox`.")


class EnvConfig(Config):
    """What `load_environment(config)` is given: `[env.taskset]` and `[env.harness]`.

    Narrow the fields to have them typed: `class MyEnvConfig(EnvConfig): taskset: MyTasksetConfig = MyTasksetConfig()`.
    """

    taskset: Any = Field(None, description="Config of the taskset.")
    harness: Any = Field(None, description="Config of the harness.")

    @model_validator(mode="after")
    def _sections(self) -> Self:
        for name in ("taskset", "harness"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Config | Mapping):
                raise ValueError(f"{name} is {type(value).__name__}; it should be a table or a config")
        return self

    @classmethod
    def _merged(cls, config: Any, fields: dict[str, Any]) -> dict[str, Any]:
        """Sections given as keywords are defaults: keys of `config` take precedence."""
        given = given_fields(config, cls.__name__)
        for name in ("taskset", "harness"):
            default, override = fields.get(name), given.get(name)
            if default is not None and override is not None:
                merged = deep_merge(given_fields(default, name), given_fields(override, name))
                fields[name] = type(default)(merged) if isinstance(default, Config) else merged
        return {**given, **fields}


def given_fields(config: Any, where: str) -> dict[str, Any]:
    """The fields that a config or a mapping sets."""
    if config is None:
        return {}
    if isinstance(config, Config):
        fields = {name: getattr(config, name) for name in type(config).model_fields if name in config.model_fields_set}
        return {name: value for name, value in fields.items() if value is not None}
    if isinstance(config, Mapping):
        odd = next((key for key in config if not isinstance(key, str)), None)
        if odd is not None:
            raise ConfigError(f"{where}: {odd!r} is no key; keys are strings.")
        return dict(config)
    raise ConfigError(f"{where}: {type(config).__name__} is no config; give a mapping or a config object.")


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` updated recursively with `over`."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = deep_merge(below, value) if both else value  # type: ignore[arg-type]
    return merged
