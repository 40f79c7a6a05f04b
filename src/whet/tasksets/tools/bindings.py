"""Bindings: arguments that are filled in for a tool, a hook or a user, and that the model does not see.

    bindings = {"search.index": "objects.index", "search.limit": "task.limit", "log.where": lambda state: ...}

The source of a value is text that begins with task, state, runtime, objects or tools followed by a path; a
function of task and state; `{fn = "module:function"}`; or any other value, which stands for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from whet.calls import CallSpec, resolve
from whet.envs.config.arguments import nearest
from whet.errors import ConfigError
from whet.tasksets.refs import resolve_function

ROOTS = ("task", "state", "runtime", "objects", "tools")
RESERVED = ("task", "state")
Resolve = Callable[[str, str], Awaitable[Any]]
"""(root, rest of the path) -> value."""


def check_bindings(bindings: Mapping[str, Any], objects: Mapping[str, Any], targets: Mapping[str, CallSpec]) -> None:
    """Raises `ConfigError` for a binding with an unknown function, argument or source."""
    for key, source in bindings.items():
        name, dot, argument = str(key).partition(".")
        if not (name and dot and argument) or "." in argument:
            raise ConfigError(f"binding '{key}' should have the form 'function.argument'.")
        if name not in targets:
            raise ConfigError(f"binding '{key}': there is no '{name}' in its toolset.{nearest(name, targets)}")
        check_binding(f"binding '{key}'", argument, targets[name], source, objects)


def check_binding(where: str, argument: str, spec: CallSpec, source: Any, objects: Mapping[str, Any]) -> None:
    """Raises `ConfigError`, beginning with `where`, for an unknown argument or source."""
    if argument in RESERVED:
        raise ConfigError(f"{where}: '{argument}' is filled in wherever a function names it.")
    if argument not in spec.names and not spec.takes_all:
        raise ConfigError(f"{where}: '{spec.name}' has no argument '{argument}'.{nearest(argument, spec.names)}")
    if not isinstance(source, str):
        return
    root, _, rest = source.partition(".")
    if root not in ROOTS:
        raise ConfigError(f"{where} comes from '{source}', which should begin with {', '.join(ROOTS)}.")
    if root == "objects" and rest.partition(".")[0] not in objects:
        raise ConfigError(f"{where}: there is no object '{rest.partition('.')[0]}'.{nearest(rest, objects)}")


def bound_arguments(bindings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The bound arguments of the function `name`, with their sources."""
    return {key.partition(".")[2]: source for key, source in bindings.items() if key.partition(".")[0] == name}


async def value_of(source: Any, look_up: Resolve, offered: Mapping[str, Any], where: str = "a binding") -> Any:
    """The value of a binding; a function that makes it can take `offered`."""
    if isinstance(source, str):
        root, _, rest = source.partition(".")
        return await look_up(root, rest)
    if isinstance(source, Mapping) and set(source) == {"fn"}:
        source = resolve_function(source["fn"], where)
    if callable(source):
        return await resolve(source(**CallSpec.of(source).select(offered)))
    return source


def at_path(value: Any, path: str) -> Any:
    """The value at a path such as `a.b.0`: keys of mappings, indices of lists, attributes."""
    for part in filter(None, path.split(".")):
        if isinstance(value, Mapping):
            value = value[part]
        elif isinstance(value, list | tuple):
            value = value[int(part)]
        else:
            value = getattr(value, part)
    return value


class Objects:
    """The objects of toolsets and users: each is made once in its scope, and closed at the end of the scope.

    A scope is one rollout, one group or the environment; `key` identifies it.
    """

    def __init__(self) -> None:
        # The owner is kept as well, so that no other object can get its id.
        self._kept: dict[tuple[str, int, str], tuple[Any, Any]] = {}
        self._making: dict[tuple[str, int, str], asyncio.Lock] = {}

    async def get(self, key: str, owner: Any, name: str) -> Any:
        """The object `name` of `owner.objects`; concurrent rollouts wait for the one that makes it."""
        slot = (key, id(owner), name)
        if slot not in self._kept:
            async with self._making.setdefault(slot, asyncio.Lock()):
                if slot not in self._kept:
                    maker = owner.objects[name]
                    self._kept[slot] = (await resolve(maker()) if callable(maker) else maker), owner
            self._making.pop(slot, None)
        return self._kept[slot][0]

    async def release(self, key: str) -> None:
        """Close all objects of one scope, even if one fails; the first failure is raised."""
        await self._close([slot for slot in self._kept if slot[0] == key])

    async def release_all(self) -> None:
        await self._close(list(self._kept))

    async def _close(self, slots: list[tuple[str, int, str]]) -> None:
        failures: list[Exception] = []
        for slot in reversed(slots):
            kept, _ = self._kept.pop(slot)
            closers = (getattr(kept, name, None) for name in ("aclose", "close", "delete", "teardown"))
            close = next(filter(callable, closers), None)
            try:
                if close is not None:
                    await resolve(close())
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]
