"""Checks of constructor arguments: unknown names (with the nearest known one), wrong values, tool definitions."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeAlias

from whet.errors import ConfigError
from whet.system.logs import warning_once
from whet.types import Tool

_log = logging.getLogger(__name__)
NO_LONGER = {"oai_tools": "Give tool_defs=[{'name': ..., 'description': ..., 'parameters': {...}}] instead."}
"""Arguments of early 0.1, and their replacements."""
Check: TypeAlias = type | tuple[type, ...] | Callable[[Any], bool]


def unknown_argument(cls: type, given: str) -> ConfigError:
    """The error for a constructor argument that no class of `cls` takes."""
    if given in NO_LONGER:
        return ConfigError(f"`{given}` is no longer supported by {cls.__name__}. {NO_LONGER[given]}")
    return ConfigError(f"{cls.__name__} has no argument '{given}'.{nearest(given, _constructor_arguments(cls))}")


def keep_as_attributes(owner: object, unknown: Mapping[str, Any]) -> None:
    """Store unknown constructor arguments as attributes, as `verifiers` 0.1 does, with one warning about all."""
    if not unknown:
        return
    cls = type(owner)
    for name, value in unknown.items():
        if name in NO_LONGER:
            raise unknown_argument(cls, name)
        try:
            setattr(owner, name, value)
        except AttributeError:  # a property
            raise unknown_argument(cls, name) from None
    known = _constructor_arguments(cls)
    near = {name: difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0] for name in unknown}
    named = ", ".join(f"'{name}' (nearest argument: '{argument}')" for name, argument in near.items())
    kept = "an attribute" if len(unknown) == 1 else "attributes"
    warning_once(_log, f"{cls.__name__} has no argument {named}; kept as {kept}, as verifiers 0.1 does.")


def check_values(owner: object, given: Mapping[str, Any], expected: Mapping[str, tuple[Check, str]]) -> None:
    """Raise `ConfigError` for the first invalid value; None is always valid.

    `expected` has, by name, the types (or a test) and the description of a valid value.
    """
    for name, (check, should_be) in expected.items():
        value = given[name]
        if value is None:
            continue
        holds = isinstance(value, check) if isinstance(check, type | tuple) else check(value)
        if not holds or (isinstance(value, bool) and check in (Integral, Real)):
            raise ConfigError(f"{type(owner).__name__} has {name}={value!r:.80}; it should be {should_be}.")


def nearest(given: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or all names if none is near."""
    names = list(known)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.6)
    if near:
        return f" Did you mean '{near[0]}'?"
    return f" It takes: {', '.join(names)}." if names else " It takes none."


def normalize_tool_defs(tool_defs: Sequence[Any] | None) -> list[Tool] | None:
    """Tools as `Tool`, from dicts with name, description and parameters."""
    if tool_defs is None:
        return None
    tools = []
    for tool in tool_defs:
        fields = tool if isinstance(tool, dict) else tool.model_dump(exclude_none=True)
        if fields.get("type") == "function" and isinstance(fields.get("function"), dict):
            raise ConfigError(
                "tool_defs holds a tool in the OpenAI form; give {'name': ..., 'description': ..., 'parameters': ...}."
            )
        missing = [name for name in ("name", "description", "parameters") if name not in fields]
        if missing:
            raise ConfigError(f"a tool in tool_defs has no {' and no '.join(missing)}: {fields!r}.")
        tools.append(tool if isinstance(tool, Tool) else Tool(**fields))
    return tools


def _constructor_arguments(cls: type) -> list[str]:
    names: dict[str, None] = {}
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if inspect.isfunction(init):
            for parameter in list(inspect.signature(init).parameters.values())[1:]:
                if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                    names[parameter.name] = None
    return list(names)
