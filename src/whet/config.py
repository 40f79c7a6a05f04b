"""Strict configuration: TOML and command-line overrides into frozen pydantic models.

Every mistake becomes one line that names the file, the key and what to do: an unknown key is an error that suggests
the nearest valid one, a wrong value says what was expected. What the keys mean is the business of the rooms that
define the models; nothing here knows about training or evaluation.
"""

from __future__ import annotations

import difflib
import math
import os
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo

from whet.errors import ConfigError
from whet.parsing import parse_toml


class StrictModel(BaseModel):
    """A frozen section of a config in which an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def differs(self, key: str) -> bool:
        """Whether the value of a key is not its default."""
        return bool(getattr(self, key) != type(self).model_fields[key].get_default(call_default_factory=True))


@dataclass(frozen=True, slots=True)
class Option:
    """How a field is written by users, where its name and type do not say it: `model: Annotated[str, Option("-m")]`.

    Every field of a config is a key of its files and an option of its command, with the description as help text.
    """

    short: str | None = None  # "-m"
    metavar: str | None = None  # "URL"; in brackets, "[SEED]", where the value may be left out
    long: str | None = None  # "--sampling-args", where it is not the field's name
    aliases: tuple[str, ...] = ()  # other spellings of the key in a file
    offered: bool = True  # False for a field that whet sets itself


PLAIN_OPTION = Option()
Paths = Annotated[tuple[Path, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
"""Several paths; a single one may be written without brackets."""
ModelT = TypeVar("ModelT", bound=BaseModel)


def read_toml(path: Path, opened: Callable[[Path], BinaryIO] = lambda path: path.open("rb")) -> dict[str, Any]:
    """The tables of a TOML file. Raises `ConfigError` naming the file, and the line where it is not TOML."""
    try:
        with opened(path) as file:
            return parse_toml(file.read().decode())
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.toml")], n=1, cutoff=0.6)
        hint = f" Did you mean {path.parent / near[0]}?" if near else ""
        raise ConfigError(f"{path}: there is no such file.{hint}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a directory; give a .toml file.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}).") from None
    except ValueError as error:  # numbers of too many digits are not TOMLDecodeError
        raise ConfigError(f"{path}: not valid TOML: {str(error).rstrip('.')}.") from None


def parse_overrides(tokens: list[str]) -> list[tuple[str, Any]]:
    """`["--sampling.max_tokens", "256", "--name=x"]` as `[("sampling.max_tokens", 256), ("name", "x")]`.

    A value is read as TOML where it is TOML (`256`, `true`, `[1, 2]`, `{a = 1}`) and as a string otherwise.
    A flag without a value means true.
    """
    pairs: list[tuple[str, Any]] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        if not token.startswith("--") or token == "--":
            raise ConfigError(f"'{token}': expected an override of the form --key value, for example --max_steps 50.")
        key, equals, text = token[2:].partition("=")
        position += 1
        if equals:
            pairs.append((_key(key), _value(text)))
        elif position < len(tokens) and not tokens[position].startswith("--"):
            pairs.append((_key(key), _value(tokens[position])))
            position += 1
        else:
            pairs.append((_key(key), True))
    return pairs


def _key(text: str) -> str:
    return text.replace("-", "_")


def _value(text: str) -> Any:
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text


def apply_overrides(data: Mapping[str, Any], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A copy of `data` with each dotted key set. A number in a key indexes a list: `env.0.weight`."""
    result: dict[str, Any] = deepcopy(dict(data))
    for key, value in pairs:
        _set(result, key, key.split("."), value)
    return result


def _set(node: Any, key: str, parts: list[str], value: Any) -> None:
    *parents, last = parts
    for part in parents:
        if isinstance(node, list):
            node = node[_index(node, key, part)]
        elif isinstance(node, dict):
            node = node.setdefault(part, {})
        else:
            raise ConfigError(f"--{key}: '{part}' is inside a plain value, not a table.")
    if isinstance(node, list):
        node[_index(node, key, last)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise ConfigError(f"--{key}: '{last}' is inside a plain value, not a table.")


def _index(items: list[Any], key: str, part: str) -> int:
    if not part.isdigit() or int(part) >= len(items):
        raise ConfigError(f"--{key}: '{part}' must be a number from 0 to {len(items) - 1}, the position in the list.")
    return int(part)


def validate(model: type[ModelT], data: Mapping[str, Any], source: str) -> ModelT:
    """`data` as a `model`. Raises `ConfigError` with one line per mistake; `source` is the file's name."""
    refuse_infinite(data, source)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(model, error, source)) from None


def refuse_infinite(data: Any, source: str) -> None:
    """Raise `ConfigError` for numbers that are not finite (nan, inf, 1e400), which JSON has not, a line each."""
    lines, left = list[str](), [("", data)]
    while left:
        path, value = left.pop()
        inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        left += [(f"{path}.{key}".lstrip("."), item) for key, item in inner]
        if isinstance(value, float) and not math.isfinite(value):
            lines.append(f"{source}: '{path}': {value} is not a finite number; give one, or text in quotes.")
    if lines:
        raise ConfigError("\n".join(reversed(lines)))


def explain(model: type[BaseModel], error: ValidationError, source: str) -> str:
    """What `model` refused, one line per mistake, each beginning with `source`."""
    items = error.errors()
    # A list that is too short because its items were refused says nothing new.
    news = [item for item in items if not (item["type"] == "too_short" and _is_above_another(item["loc"], items))]
    return "\n".join(dict.fromkeys(_explain(model, item, source) for item in news))


def _is_above_another(path: tuple[int | str, ...], items: Sequence[Any]) -> bool:
    return any(len(item["loc"]) > len(path) and item["loc"][: len(path)] == path for item in items)


def _explain(model: type[BaseModel], item: Any, source: str) -> str:
    location = [part for part in item["loc"] if not str(part).startswith("function-")]
    key = ".".join(str(part) for part in location)
    if item["type"] == "extra_forbidden":
        return f"{source}: unknown key '{key}'.{_suggest(model, location)}"
    if item["type"] == "missing":
        return f"{source}: '{key}' is missing; it has no default."
    message = str(item["msg"]).removeprefix("Value error, ")
    if not key:
        return f"{source}: {message}"
    shown = not isinstance(item["input"], dict | list) and item["type"] != "value_error"
    given = f" (got {item['input']!r})" if shown else ""
    return f"{source}: '{key}': {message}{given}"


def _suggest(model: type[BaseModel], location: list[Any]) -> str:
    parents, wrong = location[:-1], str(location[-1])
    here = _descend(model, parents)
    valid = list(here.model_fields) if here is not None else []
    near = difflib.get_close_matches(wrong, valid, n=1, cutoff=0.6)
    if near:
        return f" Did you mean '{'.'.join([*map(str, parents), near[0]])}'?"
    if parents and wrong in model.model_fields:
        return f" Did you mean '{wrong}'? In a file it goes above the first [table] header."
    everywhere = all_keys(model)
    near = difflib.get_close_matches(wrong, [key.rpartition(".")[2] for key in everywhere], n=1, cutoff=0.75)
    if near:
        full = next(key for key in everywhere if key.rpartition(".")[2] == near[0])
        return f" Did you mean '{full}'?"
    return f" Valid keys here: {', '.join(sorted(valid))}." if valid else ""


def _descend(model: type[BaseModel], parents: list[Any]) -> type[BaseModel] | None:
    here: type[BaseModel] | None = model
    is_key = False  # the part is a key of a table of sections
    for part in parents:
        if isinstance(part, int) or is_key:
            is_key = False
            continue
        if here is None or part not in here.model_fields:
            return None
        annotation = here.model_fields[part].annotation
        is_key = get_origin(annotation) is dict
        here = section_of(get_args(annotation)[1] if is_key else annotation)
    return here


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The model inside an annotation such as `Model`, `Model | None` or `tuple[Model, ...]`; None for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, list, tuple):
        return next(filter(None, map(section_of, get_args(annotation))), None)
    return None


def all_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every dotted key of a config, sections before what is in them."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        if (section := section_of(field.annotation)) is not None:
            keys += all_keys(section, f"{prefix}{name}.")
    return keys


def option_of(field: FieldInfo) -> Option:
    """How users write a field."""
    return next((item for item in field.metadata if isinstance(item, Option)), PLAIN_OPTION)


def options_of(model: type[BaseModel], without: Sequence[str] = ()) -> dict[str, FieldInfo]:
    """The fields that users set, by name."""
    fields = model.model_fields.items()
    return {name: field for name, field in fields if name not in without and option_of(field).offered}


def aliases_of(model: type[BaseModel]) -> dict[str, str]:
    """The field that each other spelling of a key means."""
    return {alias: name for name, field in options_of(model).items() for alias in option_of(field).aliases}


def fields_with(model: type[BaseModel], *types: type) -> tuple[str, ...]:
    """The fields whose values are, or hold, one of these types: `fields_with(model, Path)`."""
    return tuple(name for name, field in options_of(model).items() if set(types) & set(_inner(field.annotation)))


def split_lists(layer: dict[str, Any], model: type[BaseModel]) -> None:
    """Texts in fields of several values become lists, in place: `"a, b"` is `["a", "b"]`; a path stays whole."""
    for name, field in options_of(model).items():
        text = layer.get(name)
        if get_origin(field.annotation) is tuple and isinstance(text, str):
            layer[name] = [text] if Path in _inner(field.annotation) else [part.strip() for part in text.split(",")]


def resolve_paths(
    layer: dict[str, Any], names: Sequence[str], folder: Path, names_or_paths: Sequence[str] = ()
) -> None:
    """Make the paths, or lists of paths, of these names relative to `folder`, in place; also what may be a path."""
    for name in names:
        value = layer.get(name)
        if isinstance(value, str):
            layer[name] = str(folder / os.path.expanduser(value))
        elif isinstance(value, list):
            layer[name] = [str(folder / os.path.expanduser(item)) for item in value]
    for name in names_or_paths:
        if isinstance(layer.get(name), str):
            layer[name] = name_or_path(layer[name], folder)


def name_or_path(text: str, folder: Path) -> str:
    """A name (of an environment, a model) as it is; a path relative to `folder`."""
    is_path = text.startswith(".") or ("/" in text and (folder / text).exists())
    return str(folder / text) if is_path else text


def table_of(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A table of a TOML file; an empty one where the key is missing or holds another type."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def part_of(model: type[BaseModel], name: str, fields: Sequence[str]) -> type[StrictModel]:
    """A config with these fields of `model` alone, each of which may be left out."""
    chosen = {field: model.model_fields[field] for field in fields}
    parts: dict[str, Any] = {
        field: (Annotated[(info.annotation, *info.metadata)] | None, None) for field, info in chosen.items()
    }
    return create_model(name, __base__=StrictModel, **parts)


def _inner(annotation: Any) -> Iterator[Any]:
    """The plain types of an annotation: int and None of `int | None`, Path of `tuple[Path, ...]`."""
    if get_origin(annotation) in (Union, types.UnionType, tuple):
        for part in get_args(annotation):
            yield from _inner(part)
    else:
        yield annotation
