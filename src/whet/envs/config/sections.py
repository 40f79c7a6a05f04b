"""From the tables of a config file to the arguments of `load_environment`.

    [env.args]       ─▶  load_environment(**args)
    [env.taskset]    ─▶  load_environment(config={"taskset": ..., "harness": ...})
    [env.harness]    ─┘

The arguments `system_prompt` and `components` are texts that replace the environment's own (`texts.py`), or
`{"file": PATH}` with a file of such texts.

A loader whose `config` is annotated with a class that has `from_config`, such as the configs of tasksets, receives an
instance of it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from whet.envs.config.texts import SYSTEM_PROMPT
from whet.errors import ConfigError
from whet.system.files import expanded

SECTIONS = ("taskset", "harness")
COMPONENTS = "components"


def loader_arguments(
    args: Mapping[str, Any],
    taskset: Mapping[str, Any] | None = None,
    harness: Mapping[str, Any] | None = None,
    *,
    where: str = "env",
) -> dict[str, Any]:
    """The arguments in the three tables together.

    Raises `ConfigError` for a section that is given twice; `where` is the name of the tables in the file.
    """
    merged = dict(args)
    given = {"taskset": taskset, "harness": harness}
    sections = {name: dict(table) for name, table in given.items() if table is not None}
    if not sections:
        return merged
    config = merged.get("config", {})
    if not isinstance(config, Mapping):
        raise ConfigError(f"[{where}.args]: config is {config!r}; next to a taskset or harness it should be a table.")
    for name in sections:
        if name in merged:
            raise ConfigError(f"[{where}.{name}] and {name} in [{where}.args] say the same; leave one out.")
        if name in config:
            raise ConfigError(f"[{where}.{name}] and config.{name} in [{where}.args] say the same; leave one out.")
    return {**merged, "config": {**config, **sections}}


def with_files(args: Mapping[str, Any], folder: Path, where: str) -> dict[str, Any]:
    """The arguments with files replaced by their texts; relative paths are relative to `folder`.

    Raises `ConfigError`, beginning with `where`, for a file that cannot be read or has no texts.
    """
    values = dict(args)
    for name in (SYSTEM_PROMPT, COMPONENTS):
        value = values.get(name)
        if isinstance(value, Mapping) and set(value) == {"file"} and isinstance(value["file"], str):
            values[name] = _read_texts(folder / expanded(value["file"]), name, where)
    return values


def _read_texts(path: Path, name: str, where: str) -> Any:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{where}: {name} is to be read from {path}: {reason}.") from None
    if name == SYSTEM_PROMPT:
        return text.removesuffix("\n")
    try:
        texts = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {name} is to be read from {path}, which is not JSON ({error}).") from None
    if not isinstance(texts, dict):
        raise ConfigError(f"{where}: {name} is to be read from {path}, which should hold an object of texts by name.")
    return texts


def typed_config(loader: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, with `config` as an instance of the loader's class. Raises the errors of that class."""
    typed = dict(arguments)
    wanted = _config_class(loader) if isinstance(typed.get("config"), Mapping) else None
    if wanted is not None:
        typed["config"] = wanted.from_config(typed["config"])
    return typed


def _config_class(loader: Callable[..., Any]) -> Any:
    """The class with `from_config` in the annotation of `config`: itself, or one of a union."""
    if "config" not in inspect.signature(loader).parameters:
        return None
    try:
        annotation = get_type_hints(loader).get("config")
    except (NameError, TypeError):
        annotation = inspect.signature(loader).parameters["config"].annotation
    candidates = [annotation, *get_args(annotation)]
    return next((one for one in candidates if isinstance(one, type) and hasattr(one, "from_config")), None)
