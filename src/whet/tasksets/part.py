"""What a `Taskset` and a `Harness` have in common: functions, tools, a user and a system prompt."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from whet.errors import ConfigError
from whet.tasksets.config import PartConfig
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
from whet.tasksets.tools.toolset import Toolset, read_toolsets
from whet.tasksets.tools.user import read_user


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
        return [*self.own_functions[kind], *(found for toolset in self.toolsets for found in toolset.functions(kind))]

    def signals(self) -> list[Function]:
        """Rewards, metrics and advantages, changed by `scoring`. Raises `ConfigError` for a duplicate name."""
        found = [function for kind in SIGNALS for function in self.own_functions[kind]]
        refuse_duplicates(found)
        return apply_scoring(found, self.config.scoring, type(self).__name__)

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
