"""Misspelt arguments: what was given, and the nearest name that would have been taken."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable

from whet.errors import ConfigError


def unknown_argument(cls: type, given: str) -> ConfigError:
    """The error for a constructor argument that no class of `cls` takes."""
    return ConfigError(f"{cls.__name__} has no argument '{given}'.{nearest(given, _constructor_arguments(cls))}")


def nearest(given: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or the names there are where none is near."""
    names = list(known)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.6)
    if near:
        return f" Did you mean '{near[0]}'?"
    return f" It takes: {', '.join(names)}." if names else " It takes none."


def _constructor_arguments(cls: type) -> list[str]:
    names: dict[str, None] = {}
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if inspect.isfunction(init):
            for parameter in list(inspect.signature(init).parameters.values())[1:]:
                if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                    names[parameter.name] = None
    return list(names)
