"""Numbers and tool calls as short text, for terminals and pages alike. Nothing here is made harmless yet."""

from __future__ import annotations

import math
from typing import Any

from whet.messages import as_tool_call


def number(value: float | None, digits: int = 3) -> str:
    """`value` with so many decimals; a dash where there is none, or none that is finite."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def call_text(call: Any) -> str:
    """A tool call as `name(arguments)`, from any of the forms in which rows keep one."""
    try:
        read = as_tool_call(call)
    except (TypeError, ValueError):
        return str(call)
    return f"{read.name}({read.arguments})"


def listed(value: Any) -> list[Any]:
    """`value` if it is a list, else nothing: what a file of rows holds may be anything."""
    return value if isinstance(value, list) else []
