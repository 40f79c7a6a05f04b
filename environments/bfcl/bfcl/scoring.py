"""Whether calls are among the possible answers, as BFCL's AST checker has it for Python (package `bfcl-eval`).

A description is a row's `{name, parameters: {properties, required}}`; a possible answer is `{name: {parameter:
[values]}}`, where the value "" says that the parameter may be left out. Types are those of the answers: a value of
another type than described is compared as it is where an answer has that type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from whet.parsing import as_number

TYPES = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}
IGNORED = re.compile(r"[ ,./\-_*^]")
OPTIONAL = ""

Call = tuple[str, Mapping[str, Any]]


def name_of_tool(name: str) -> str:
    """What a model calls a function: interfaces for tools allow no dots in a name."""
    return name.replace(".", "_")


def plain(value: Any) -> Any:
    """Text without spaces, punctuation, capitals and kinds of quotes; anything else as it is."""
    return IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


def is_correct(category: str, functions: Sequence[Any], calls: Sequence[Call], answers: Sequence[Any]) -> bool:
    """Whether the calls of one answer are right. In a parallel category their order is free, and each counts once."""
    if len(calls) != len(answers):
        return False
    if "parallel" not in category and "multiple" not in category:
        return call_is_among(functions[0], calls[0], answers[0])
    left = list(calls)
    for answer in answers:
        (name,) = answer
        description = next(function for function in functions if function["name"] == name)
        place = next((i for i, call in enumerate(left) if call_is_among(description, call, answer)), None)
        if place is None:
            return False
        del left[place]
    return True


def call_is_among(description: Mapping[str, Any], call: Call, answer: Mapping[str, Mapping[str, list[Any]]]) -> bool:
    name, arguments = call
    (possible,) = answer.values()
    parameters = description["parameters"]
    if name != name_of_tool(description["name"]) or not all(key in arguments for key in parameters["required"]):
        return False
    for key, value in arguments.items():
        if key not in parameters["properties"] or key not in possible:
            return False
        if not value_is_among(parameters["properties"][key], value, possible[key]):
            return False
    return all(key in arguments or OPTIONAL in values for key, values in possible.items())


def value_is_among(described: Mapping[str, Any], value: Any, possible: Sequence[Any]) -> bool:
    expected = TYPES[described["type"]]
    nested = TYPES[described["items"]["type"]] if described["type"] in ("array", "tuple") else None
    if described["type"] == "float" and type(value) is int:
        value = as_number(value)  # None of one that no float can hold
    if not has_type(value, possible, expected, nested):
        return False
    if type_of(possible) not in (None, expected) or type(value) is not expected:
        return value in possible  # a variable, where a value is described
    if expected is dict:
        return any(is_dict(value, one) for one in possible if one != OPTIONAL)
    if expected is list and nested is dict:
        return any(
            len(value) == len(one) and all(map(is_dict, value, one)) for one in possible if isinstance(one, list | str)
        )
    if expected is list:
        return [plain(item) for item in value] in [[plain(item) for item in one] for one in possible]
    if expected is str:
        return plain(value) in [plain(one) for one in possible if isinstance(one, str)]
    return value in possible


def type_of(possible: Sequence[Any]) -> type | None:
    """That of the first possible value; None where the parameter can only be left out."""
    return next((type(one) for one in possible if one != OPTIONAL), None)


def has_type(value: Any, possible: Sequence[Any], expected: type, nested: type | None) -> bool:
    if type(value) is not expected:
        return type(value) is type_of(possible)
    return nested is None or any(
        not isinstance(one, list) or all(has_type(item, one, nested, None) for item in value) for one in possible
    )


def is_dict(value: Any, possible: Any) -> bool:
    """Whether each value is one of its key's, and no key is missing that is not optional."""
    if not isinstance(value, Mapping) or not isinstance(possible, Mapping):
        return False
    right = all(key in possible and plain(one) in [plain(each) for each in possible[key]] for key, one in value.items())
    return right and all(key in value or OPTIONAL in values for key, values in possible.items())
