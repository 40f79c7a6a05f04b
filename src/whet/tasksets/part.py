"""What a `Taskset` and a `Harness` have in common: functions, tools, a user and a system prompt."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

from whet.errors import ConfigError
from whet.tasksets.config import PartConfig
from whet.tasksets.signals import (
    KINDS,
    SIGNALS,
    Function,
    Kind,
    apply_scoring,
    listed_functions,
    marked_functions,
    read_function,
    refuse_duplicates,
)
from whet.tasksets.task import system_messages
from whet.tasksets.tools.toolset import Toolset, read_toolsets
from whet.tasksets.tools.user import read_user


class _Attached(Protocol):
    def refresh(self) -> None: ...


def either(part: object, field: str, given: Any, config: PartConfig) -> Any:
    """A single value, from code or from the config. Raises `ConfigError` where both say something else."""
    configured = getattr(config, field)
    if given is None:
        return configured
    if field in config.model_fields_set and configured is not None and configured is not given and configured != given:
        raise ConfigError(
            f"{type(part).__name__}: code gives a {field}, so that of its config would have no effect. Leave one out."
        )
    return given


class EnvPart:
    config: PartConfig

    def _read(self, config: PartConfig, *, system_prompt: Any, user: Any, toolsets: Any, **lists: Any) -> None:
        """Take over what code gave (`lists` by the plural of their kind) and what the config adds."""
        self.config = config
        name = type(self).__name__
        try:
            self.system_prompt = system_messages(either(self, "system_prompt", system_prompt, config), "system_prompt")
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{name}: {error}.") from error
        self.user = read_user(either(self, "user", user, config), name)
        self.toolsets: list[Toolset] = []
        self.named_toolsets: dict[str, Toolset] = {}
        self._attached: weakref.WeakSet[Any] = weakref.WeakSet()
        for given in (toolsets, config.toolsets):
            self._add_toolsets(given)
        self._functions: dict[Kind, list[Function]] = {
            kind: [
                *marked_functions(self, kind),
                *listed_functions(kind, lists.get(f"{kind}s"), name),
                *listed_functions(kind, getattr(config, f"{kind}s", None), name),
            ]
            for kind in KINDS
        }
        self.signals()

    def functions_of_its_own(self, kind: Kind) -> list[Function]:
        """Those of one kind, without the ones of its toolsets."""
        return self._functions[kind]

    def functions(self, kind: Kind) -> list[Function]:
        """Those of one kind, with the ones of its toolsets."""
        if kind in SIGNALS:
            return self._functions[kind]
        return [*self._functions[kind], *(found for toolset in self.toolsets for found in toolset.functions(kind))]

    def signals(self) -> list[Function]:
        """Rewards, metrics and advantages as `scoring` leaves them. Raises `ConfigError` where names collide."""
        found = [function for kind in SIGNALS for function in self._functions[kind]]
        refuse_duplicates(found)
        return apply_scoring(found, self.config.scoring, type(self).__name__)

    def add_metric(self, function: Callable[..., Any]) -> None:
        self._add("metric", function)

    def add_reward(self, function: Callable[..., Any]) -> None:
        self._add("reward", function)

    def add_advantage(self, function: Callable[..., Any]) -> None:
        self._add("advantage", function)

    def add_stop(self, function: Callable[..., Any]) -> None:
        self._add("stop", function)

    def add_setup(self, function: Callable[..., Any]) -> None:
        self._add("setup", function)

    def add_update(self, function: Callable[..., Any]) -> None:
        self._add("update", function)

    def add_cleanup(self, function: Callable[..., Any]) -> None:
        self._add("cleanup", function)

    def add_toolset(self, toolset: Any) -> None:
        self._add_toolsets(toolset)
        self._refresh()

    def attach(self, env: _Attached) -> None:
        """Have `env` told of what is added later."""
        self._attached.add(env)

    def _add(self, kind: Kind, function: Any) -> None:
        self._functions[kind].append(read_function(kind, function, type(self).__name__))
        self._refresh()

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
