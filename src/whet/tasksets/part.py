"""What a `Taskset` and a `Harness` have in common: functions, tools, a user and a system prompt."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from whet.calls import CallSpec, describe, resolve
from whet.errors import ConfigError, EnvError, Error, WhetError
from whet.messages import normalize_messages
from whet.tasksets.config import PartConfig, UserConfig
from whet.tasksets.refs import resolve_function, resolve_ref
from whet.tasksets.signals import (
    KINDS,
    SIGNALS,
    Function,
    Kind,
    apply_scoring,
    read_function,
    read_functions,
    refuse_duplicates,
)
from whet.tasksets.task import system_messages
from whet.tasksets.tools.bindings import check_binding
from whet.tasksets.tools.calling import RolloutTools
from whet.tasksets.tools.sandboxes import read_sandbox
from whet.tasksets.tools.toolset import Toolset, read_toolsets
from whet.types import Messages


class _Attached(Protocol):
    def refresh(self) -> None: ...


def _adder(kind: Kind) -> Callable[[EnvPart, Callable[..., Any]], None]:
    """The method that adds a function of one kind."""

    def add(self: EnvPart, function: Callable[..., Any]) -> None:
        self.own_functions[kind].append(read_function(kind, function, type(self).__name__))
        self._refresh()

    return add


class EnvPart:
    config: PartConfig

    def _either(self, field: str, given: Any) -> Any:
        """A single value, from code or from the config. Raises `ConfigError` if the two differ."""
        configured = getattr(self.config, field)
        if given is None:
            return configured
        if field in self.config.model_fields_set and configured is not None and configured != given:
            raise ConfigError(
                f"{type(self).__name__}: code gives a {field}, so that of its config would have no effect. "
                "Leave one out."
            )
        return given

    def _read(self, given: Mapping[str, Any]) -> None:
        """Read the common fields, from the arguments of the constructor (`given`) and from the config."""
        config, name = self.config, type(self).__name__
        try:
            self.system_prompt = system_messages(self._either("system_prompt", given["system_prompt"]), "system_prompt")
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{name}: {error}.") from error
        self.user = read_user(self._either("user", given["user"]), name)
        self.toolsets: list[Toolset] = []
        self.named_toolsets: dict[str, Toolset] = {}
        self._attached: weakref.WeakSet[Any] = weakref.WeakSet()
        for toolsets in (given["toolsets"], config.toolsets):
            self._add_toolsets(toolsets)
        self.own_functions = read_functions(self, KINDS, given, config, name)
        """By kind, without the functions of toolsets."""
        self.signals()

    def functions(self, kind: Kind) -> list[Function]:
        """The functions of one kind, with those of its toolsets."""
        if kind in SIGNALS:
            return self.own_functions[kind]
        return [
            *self.own_functions[kind],
            *(function for toolset in self.toolsets for function in toolset.functions(kind)),
        ]

    def signals(self) -> list[Function]:
        """Rewards, metrics and advantages, changed by `scoring`. Raises `ConfigError` for a duplicate name."""
        signals = [function for kind in SIGNALS for function in self.own_functions[kind]]
        refuse_duplicates(signals)
        return apply_scoring(signals, self.config.scoring, type(self).__name__)

    add_metric = _adder("metric")
    add_reward = _adder("reward")
    add_advantage = _adder("advantage")
    add_stop = _adder("stop")
    add_setup = _adder("setup")
    add_update = _adder("update")
    add_cleanup = _adder("cleanup")

    def add_toolset(self, toolset: Any) -> None:
        self._add_toolsets(toolset)
        self._refresh()

    def attach(self, env: _Attached) -> None:
        """Have `env` refreshed when something is added later."""
        self._attached.add(env)

    def _add_toolsets(self, given: Any) -> None:
        toolsets, named = read_toolsets(given, type(self).__name__)
        for name in named:
            if name in self.named_toolsets:
                raise ConfigError(f"{type(self).__name__}: there are two toolsets '{name}'.")
        self.toolsets += toolsets
        self.named_toolsets.update(named)

    def _refresh(self) -> None:
        for env in list(self._attached):
            env.refresh()


# `User`: simulates the user where the model calls no tool.


class User:
    """A simulated user.

    Args:
        fn: plain or async function that takes any of task, state and transcript (all messages so far) and
            returns the next user messages; none ends the rollout.
        scope: how long its objects live: "rollout", "group" or "global".
        bindings: an argument of `fn` to where its value comes from, as in a `Toolset`.
        objects: objects that bindings name, or functions without arguments that make them.
        sandbox: fields of a `SandboxConfig`, for a function that names `sandbox`.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        scope: str = "rollout",
        bindings: Mapping[str, Any] | None = None,
        objects: Mapping[str, Any] | None = None,
        sandbox: Any = None,
    ) -> None:
        self.fn = fn
        self.spec = CallSpec.of(fn)
        self.scope = scope
        self.bindings = dict(bindings or {})
        self.objects = {name: resolve_ref(value, f"user objects.{name}") for name, value in (objects or {}).items()}
        if scope not in ("rollout", "group", "global"):
            raise ConfigError(f"a user's scope is {scope!r}; it should be rollout, group or global.")
        self.sandbox = read_sandbox(sandbox, "a user's sandbox")
        for argument, source in self.bindings.items():
            check_binding(f"user binding '{argument}'", argument, self.spec, source, self.objects)

    async def reply(self, tools: RolloutTools, transcript: Messages) -> Messages:
        """The user's next messages, possibly none."""
        offered: dict[str, Any] = {"task": tools.task, "state": tools.state, "transcript": list(transcript)}
        filled_in = await tools.bound(self, self.bindings, transcript=offered["transcript"])
        if self.sandbox is not None and "sandbox" in self.spec.names:
            offered["sandbox"] = await tools.scopes.object_of(self.sandbox, "sandbox")
        arguments = {**self.spec.select(offered), **filled_in}
        try:
            messages = await resolve(self.fn(**arguments))
        except (Error, WhetError):
            raise
        except Exception as error:
            raise EnvError(f"user '{self.spec.name}' raised {describe(error)}") from error
        return normalize_messages(messages, field_name="the user's messages") if messages else []


def read_user(value: Any, where: str) -> User | None:
    """A user from a function, a `User`, a `"module:function"` string, or a table of its fields."""
    value = resolve_ref(value, f"{where}.user")
    if value is None or isinstance(value, User):
        return value
    if isinstance(value, Mapping | UserConfig):
        config = UserConfig.from_config(value)
        function = resolve_function(config.fn, f"{where}.user")
        return User(function, config.scope, config.bindings, config.objects, config.sandbox)
    return User(resolve_function(value, f"{where}.user"))
