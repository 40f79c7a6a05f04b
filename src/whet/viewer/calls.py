"""Tool calls as rows hold them: JSON text, or the shapes that other programs write."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool by the model."""

    name: str
    arguments: str  # as the model wrote them, JSON or not
    id: str = ""

    @property
    def parsed(self) -> Any:
        """The arguments as values; the text itself where it is not JSON."""
        try:
            return json.loads(self.arguments)
        except (ValueError, RecursionError):
            return self.arguments


def tool_calls(message: Mapping[str, Any]) -> Iterator[Call]:
    """The calls of a message, in order; what is no call is shown as a call without a name."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        yield _call(call)


def _call(value: Any) -> Call:
    if isinstance(value, str):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, Mapping):
            return Call("", value)
        value = parsed
    if not isinstance(value, Mapping):
        return Call("", json.dumps(value))
    function = value.get("function")
    called = function if isinstance(function, Mapping) else value
    arguments = called.get("arguments")
    return Call(
        name=str(called.get("name") or ""),
        arguments=arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
        id=str(value.get("id") or ""),
    )
