"""What a model is told of a Python function: its name, its docstring, and a JSON schema of its parameters.

Types come from the hints, descriptions from the docstring's `Args:` section (Google style; `:param name:` and NumPy's
`Parameters` are read too). The schema is strict as the OpenAI interfaces define it: every parameter is required and no
other is allowed, so the model always says what it wants.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from typing import Any, get_type_hints

from pydantic import ConfigDict, Field, PydanticUserError, create_model

from whet.calls import name_of
from whet.errors import ConfigError
from whet.types import Tool

_SECTION = re.compile(r"(Args|Arguments|Parameters|Params|Returns?|Raises|Yields|Examples?|Notes?):?\s*")
_GOOGLE = re.compile(r"(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_SPHINX = re.compile(r":param\s+(?:\S+\s+)?(\w+)\s*:\s*(.*)")
_NUMPY = re.compile(r"(\w+)\s*(?::.*)?")


def tool_from_function(function: Callable[..., Any], hidden: Collection[str] = ()) -> Tool:
    """The tool for a function, without its `hidden` parameters.

    Raises `ConfigError` for a parameter whose type JSON cannot express.
    """
    name = name_of(function)
    description, parameters = read_docstring(inspect.getdoc(function) or "")
    return Tool(name=name, description=description, parameters=_schema(function, name, parameters, hidden))


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """A docstring's opening text, and what it says of each parameter."""
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
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        hints = {}
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in hidden:
            continue
        default: Any = ...  # pydantic's sign for a required field
        hint: Any = hints.get(parameter.name, Any if parameter.annotation is parameter.empty else parameter.annotation)
        if parameter.kind is parameter.VAR_POSITIONAL:
            hint, default = list[hint], []
        elif parameter.kind is parameter.VAR_KEYWORD:
            hint, default = dict[str, hint], {}
        elif parameter.default is not parameter.empty:
            default = parameter.default
        fields[parameter.name] = (hint, Field(default, description=described.get(parameter.name)))
    try:
        model = create_model(f"{name}_args", __config__=ConfigDict(arbitrary_types_allowed=False), **fields)
        schema = model.model_json_schema()
    except (PydanticUserError, NameError, TypeError) as error:
        raise ConfigError(
            f"tool '{name}' has a parameter that cannot be described to a model: {str(error).splitlines()[0]} "
            "Annotate parameters with JSON types (str, int, float, bool, list, dict) or pydantic models."
        ) from error
    strict: dict[str, Any] = _strict(schema)
    return strict


def _strict(node: Any) -> Any:
    """Every object closed and every property required; `null` defaults say nothing and are left out."""
    if isinstance(node, list):
        return [_strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: _strict(value) for key, value in node.items() if not (key == "default" and value is None)}
    if node.get("type") == "object" and "additionalProperties" not in node:
        node["additionalProperties"] = False
    if isinstance(node.get("properties"), dict):
        node["required"] = list(node["properties"])
    if isinstance(node.get("allOf"), list) and len(node["allOf"]) == 1:
        node.update(node.pop("allOf")[0])
    return node
