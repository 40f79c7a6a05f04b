"""A Python function as a tool definition: its name, its docstring, and a JSON schema of its parameters.

A tool is called with plain JSON values: a dict for a model or a dataclass, a text for an Enum.

Types come from the hints, descriptions from the docstring's `Args:` section (Google style; `:param name:` and NumPy's
`Parameters` are read too). The schema is strict as the OpenAI interfaces define it: every parameter is required and no
other is allowed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from pydantic import Field, PydanticUserError, TypeAdapter, create_model
from pydantic.json_schema import GenerateJsonSchema

from whet.calls import name_of
from whet.errors import ConfigError
from whet.types import Tool

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_SECTION = re.compile(r"(Args|Arguments|Parameters|Params|Returns?|Raises|Yields|Examples?|Notes?):?\s*")
_GOOGLE = re.compile(r"(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_SPHINX = re.compile(r":param\s+(?:\S+\s+)?(\w+)\s*:\s*(.*)")
_NUMPY = re.compile(r"(\*{0,2}\w+)\s*(?::.*)?")


def tool_from_function(function: Callable[..., Any], hidden: Collection[str] = ()) -> Tool:
    """The tool for a function, without its `hidden` parameters.

    Raises `ConfigError` for a callable that a model cannot call: without a name or a signature, with a parameter whose
    type JSON cannot express, or a generator.
    """
    name = name_of(function)
    if not name.isidentifier():
        raise ConfigError(f"a tool is called '{name}', which a model cannot call; define it with def and a name.")
    inner = _innermost(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise ConfigError(f"tool '{name}' is a generator; return the whole answer instead.")
    description, described = read_docstring(_docstring(function))
    return Tool(name=name, description=description, parameters=_schema(function, name, described, hidden))


def spread_signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function that cannot be called with keyword arguments alone; otherwise None."""
    signature = inspect.signature(function)
    return signature if any(p.kind not in _BY_NAME for p in signature.parameters.values()) else None


def call_spread(function: Callable[..., Any], signature: inspect.Signature, arguments: Mapping[str, Any]) -> Any:
    """Call a function with the arguments of its schema: the list for `*args` and the object for `**kwargs` spread out.

    Raises TypeError for wrong arguments.
    """
    bound: dict[str, Any] = {}
    left = dict(arguments)
    for parameter in signature.parameters.values():
        name = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            bound[name] = tuple(_expect(list, name, left.pop(name, [])))
        elif parameter.kind is parameter.VAR_KEYWORD:
            bound[name] = {**_expect(dict, name, left.pop(name, {})), **left}
            left = {}
        elif name in left:
            bound[name] = left.pop(name)
        elif parameter.default is not parameter.empty:
            bound[name] = parameter.default
        else:
            raise TypeError(f"missing a required argument: '{name}'")
    if left:
        raise TypeError(f"got an unexpected argument: '{next(iter(left))}'")
    call = inspect.BoundArguments(signature, OrderedDict(bound))
    return function(*call.args, **call.kwargs)


def fitted_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """A model's arguments with the types of a tool's JSON schema, converted where nothing is lost by it.

    Raises ValueError, for the model to read, where a value is of another type. Arguments that are missing or that the
    schema does not name are left to the tool.
    """
    properties, definitions = schema.get("properties") or {}, schema.get("$defs") or {}
    return {
        name: _fitted(value, properties[name], definitions, name) if name in properties else value
        for name, value in arguments.items()
    }


_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "integer": ((int,), "an integer"),
    "number": ((int, float), "a number"),
    "boolean": ((bool,), "true or false"),
    "string": ((str,), "text"),
    "array": ((list,), "a list"),
    "object": ((dict,), "a JSON object"),
    "null": ((type(None),), "null"),
}


def _fitted(value: Any, schema: Any, definitions: Mapping[str, Any], where: str) -> Any:
    """`value` as the schema has it, which is read for types and choices alone."""
    if isinstance(schema, Mapping) and "$ref" in schema:
        schema = definitions.get(str(schema["$ref"]).rpartition("/")[2])
    if not isinstance(schema, Mapping):
        return value
    if options := schema.get("anyOf") or schema.get("oneOf"):
        fits = []
        for option in options:
            with contextlib.suppress(ValueError):
                fits.append(_fitted(value, option, definitions, where))
        if not fits:
            raise ValueError(f"'{where}' should be one of {json.dumps(options)[:300]}, not {value!r:.80}")
        return next((fit for fit in fits if fit == value and type(fit) is type(value)), fits[0])
    kinds = schema.get("type")
    kinds = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind in _TYPES]
    if kinds and not any(_is_a(value, kind) for kind in kinds):
        value = _converted(value, kinds, where)
    if schema.get("enum") and value not in schema["enum"]:
        raise ValueError(f"'{where}' should be one of {json.dumps(schema['enum'])[:300]}, not {value!r:.80}")
    if isinstance(value, dict):
        inner, others = schema.get("properties") or {}, schema.get("additionalProperties")
        return {
            key: _fitted(item, inner.get(key, others), definitions, f"{where}.{key}") for key, item in value.items()
        }
    if isinstance(value, list):
        return [_fitted(item, schema.get("items"), definitions, f"{where}[{n}]") for n, item in enumerate(value)]
    return value


def _is_a(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind][0]) and (kind == "boolean" or not isinstance(value, bool))


def _converted(value: Any, kinds: list[str], where: str) -> Any:
    """Text as the JSON it holds, a whole number as an integer, and a number as text."""
    read = value
    if isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            read = json.loads(
                value if value not in ("True", "False", "None") else value.lower().replace("none", "null")
            )
    if isinstance(read, float) and read.is_integer() and "integer" in kinds:
        read = int(read)
    if any(_is_a(read, kind) for kind in kinds):
        return read
    if "string" in kinds and isinstance(value, int | float):
        return json.dumps(value)
    wanted = " or ".join(_TYPES[kind][1] for kind in kinds)
    raise ValueError(f"'{where}' should be {wanted}, not {value!r:.80}")


def _expect(kind: type, name: str, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"'{name}' should be a {'list' if kind is list else 'JSON object'}, not {value!r:.80}")
    return value


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The opening text of a docstring, and its descriptions of parameters."""
    lines = text.splitlines()
    opening: list[str] = []
    described: dict[str, str] = {}
    section, current, indent = "", "", 0
    for index, line in enumerate(lines):
        stripped = line.strip()
        underlined = index + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[index + 1].strip()) is not None
        sphinx = _SPHINX.match(stripped)
        heading = _SECTION.fullmatch(stripped)
        if heading is not None and (stripped.endswith(":") or underlined):
            section, current, indent = heading.group(1), "", -1
        elif sphinx is not None:
            section, current = ":param", sphinx.group(1)
            described[current] = sphinx.group(2)
        elif section == "":
            opening.append(line)
        elif section == ":param":
            if stripped and not stripped.startswith(":"):
                described[current] = f"{described[current]} {stripped}".strip()
            else:
                current = ""
                section = ":other" if stripped else section
        elif section in ("Args", "Arguments", "Parameters", "Params") and stripped and not stripped.startswith("---"):
            depth = len(line) - len(line.lstrip())
            if indent < 0:
                indent = depth
            entry = _GOOGLE.match(stripped) or _NUMPY.fullmatch(stripped)
            if depth <= indent and entry is not None:
                current = entry.group(1).lstrip("*")
                described[current] = entry.group(2) if entry.re is _GOOGLE and indent > 0 else ""
            elif current:
                described[current] = f"{described[current]} {stripped}".strip()
    return "\n".join(opening).strip(), described


def _schema(
    function: Callable[..., Any], name: str, described: dict[str, str], hidden: Collection[str]
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for index, parameter in enumerate(_parameters(function, name)):
        if parameter.name in hidden:
            continue
        if parameter.name in ("self", "cls") and index == 0:
            raise ConfigError(f"tool '{name}' has the parameter '{parameter.name}'; give it bound to its object.")
        hint = _hint(function, name, parameter)
        default: Any = ...  # pydantic's sign for a required field
        if parameter.kind is parameter.VAR_POSITIONAL:
            hint, default = list[hint], []  # type: ignore[valid-type]
        elif parameter.kind is parameter.VAR_KEYWORD:
            hint, default = dict[str, hint], {}  # type: ignore[valid-type]
        elif parameter.default is not parameter.empty:
            default = parameter.default
        says = described.get(parameter.name) or _annotated_text(hint)
        # By alias, because a field of a pydantic model may not be called `json`, `copy` or `_x`, and a parameter may.
        field = Field(default, alias=parameter.name)
        if says:  # a description of None would override that of an Annotated hint
            field = Field(default, alias=parameter.name, description=says)
        _check_describable(name, parameter.name, hint)
        fields[f"field_{index}"] = (hint, field)
    model = create_model(f"{name}_args", **fields)
    schema = model.model_json_schema(by_alias=True, schema_generator=_QuietSchema)
    strict: dict[str, Any] = _strict(schema, schema.get("$defs", {}))
    return strict


class _QuietSchema(GenerateJsonSchema):
    """Without warnings about default values that JSON cannot hold: such a default is left out."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as its base has it


def _check_describable(tool: str, parameter: str, hint: Any) -> None:
    try:
        TypeAdapter(hint).json_schema(schema_generator=_QuietSchema)
    except (PydanticUserError, NameError, TypeError) as error:
        raise ConfigError(
            f"tool '{tool}' has a parameter '{parameter}' that cannot be described to a model: "
            f"{str(error).splitlines()[0].rstrip('.')}. "
            "Annotate it with JSON types (str, int, float, bool, list, dict), a dataclass or a pydantic model."
        ) from error


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"tool '{name}' does not say what it takes ({error}); wrap it in a function.") from error


def _innermost(function: Callable[..., Any]) -> Any:
    """The function behind partials, decorators, bound methods and callable objects."""
    inner: Any = function
    while True:
        if isinstance(inner, functools.partial):
            inner = inner.func
        elif hasattr(inner, "__wrapped__"):
            inner = inner.__wrapped__
        elif inspect.ismethod(inner):
            inner = inner.__func__
        elif inspect.isclass(inner):
            return inner.__init__
        elif not inspect.isroutine(inner) and hasattr(type(inner), "__call__"):  # noqa: B004
            inner = type(inner).__call__
        else:
            return inner


def _docstring(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    inner = function if inspect.isclass(function) else _innermost(function)
    return inspect.getdoc(function) or inspect.getdoc(inner) or ""


def _hint(function: Callable[..., Any], tool: str, parameter: inspect.Parameter) -> Any:
    """The type of one parameter. Each is resolved separately: a hidden one may use names of type checking only."""
    if parameter.annotation is parameter.empty:
        return Any
    inner = _innermost(function)

    def one() -> None: ...

    one.__annotations__ = {"hint": parameter.annotation}
    names = {**getattr(inner, "__globals__", {}), **_closure(inner)}
    try:
        hint = get_type_hints(one, names, include_extras=True)["hint"]
    except Exception as error:  # whatever evaluating the author's annotation raises
        raise ConfigError(
            f"tool '{tool}' annotates '{parameter.name}' with '{parameter.annotation}', which cannot be looked up "
            f"({error}). Import it, or define it outside the function."
        ) from error
    return get_args(hint)[0] if get_origin(hint) is Final else Any if hint is Final else hint


def _closure(function: Any) -> dict[str, Any]:
    """The closure variables of a function that are bound already."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    values: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=True):
        with contextlib.suppress(ValueError):  # empty
            values[name] = cell.cell_contents
    return values


def _annotated_text(hint: Any) -> str | None:
    """The description in `Annotated[int, "how many"]`."""
    if get_origin(hint) is not Annotated:
        return None
    return next((extra for extra in get_args(hint)[1:] if isinstance(extra, str)), None)


def _strict(schema: Any, definitions: Mapping[str, Any], within: frozenset[str] = frozenset()) -> Any:
    """Close every object and require every property; leave out defaults that are None or no JSON.

    A reference stands alone: where it has a description or a default as well, it is replaced by what it refers to,
    unless that is `within` itself.
    """
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema and len(schema) > 1:
        name = schema["$ref"].rpartition("/")[2]
        if name in within:
            return {"$ref": schema["$ref"]}
        schema = {**definitions[name], **{key: value for key, value in schema.items() if key != "$ref"}}
        within |= {name}
    strict: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$defs":
            strict[key] = {name: _strict(inner, definitions, within | {name}) for name, inner in value.items()}
        elif key == "properties":
            strict[key] = {name: _strict(inner, definitions, within) for name, inner in value.items()}
        elif key in ("anyOf", "allOf", "oneOf", "prefixItems"):
            strict[key] = [_strict(inner, definitions, within) for inner in value]
        elif key in ("items", "additionalProperties"):
            strict[key] = _strict(value, definitions, within)
        elif key != "default" or (value is not None and _is_json(value)):
            strict[key] = value
    if strict.get("type") == "object":
        strict.setdefault("additionalProperties", False)
    if "properties" in strict:
        strict["required"] = list(strict["properties"])
    if isinstance(strict.get("allOf"), list) and len(strict["allOf"]) == 1:
        strict.update(strict.pop("allOf")[0])
    return strict


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
