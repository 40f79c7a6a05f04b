"""Objects named in a config as `"package.module:name"`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from whet.calls import describe
from whet.envs.config.arguments import nearest
from whet.errors import ConfigError


def resolve_ref(value: Any, where: str, packages: Collection[str] | None = None) -> Any:
    """The object that a string names; any other value itself.

    Args:
        value: anything.
        where: the field of the value, for messages.
        packages: top-level packages that may be named; None allows all. Rows of a dataset are data, so they can
            name only objects of the package of their taskset.

    Raises `ConfigError` for a name that does not exist.
    """
    if not isinstance(value, str):
        return value
    module_name, colon, path = value.partition(":")
    if not (module_name and colon and path):
        raise ConfigError(f"{where}: '{value}' should have the form 'package.module:name'.")
    if packages is not None and module_name.partition(".")[0] not in packages:
        raise ConfigError(
            f"{where}: a row names '{value}', which is not in {', '.join(sorted(packages)) or 'a package'} as the "
            "taskset is. Rows may name functions of the taskset's own package only."
        )
    try:
        target: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(f"{where}: '{value}' cannot be imported: {describe(error)}.") from error
    for part in path.split("."):
        if not hasattr(target, part):
            public = [name for name in dir(target) if not name.startswith("_")]
            near = nearest(part, public)
            raise ConfigError(
                f"{where}: '{value}': {module_name} has no '{part}'.{near if 'Did you mean' in near else ''}"
            )
        target = getattr(target, part)
    return target


def resolve_function(value: Any, where: str, packages: Collection[str] | None = None) -> Callable[..., Any]:
    """`resolve_ref` for a function."""
    target: Any = resolve_ref(value, where, packages)
    if not callable(target):
        raise ConfigError(f"{where}: {value!r} is {type(target).__name__}; it should be a function.")
    function: Callable[..., Any] = target
    return function


def listed(value: Any) -> list[Any]:
    """The entries of a list in code or in a config; a single entry needs no list."""
    if value is None:
        return []
    alone = isinstance(value, str | Mapping) or callable(value) or not isinstance(value, Iterable)
    return [value] if alone else list(value)


def package_of(value: Any) -> str:
    """The top-level package that a class or function was defined in."""
    return str(getattr(value, "__module__", None) or "").partition(".")[0]
