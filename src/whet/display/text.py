"""Numbers and tool calls as short text, for terminals and pages. The results are not escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from whet.messages import as_tool_call
from whet.system.terminal import safe_text


def number(value: float | None, digits: int = 3) -> str:
    """`value` with so many decimals; a dash where there is none, or none that is finite."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def pairs_text(values: Mapping[str, float]) -> str:
    """`exact_match 0.500, length 12.000`; counts have no decimals. Names are made safe for a terminal."""
    shown = (
        (safe_text(name, 80), str(value) if isinstance(value, int) else number(value)) for name, value in values.items()
    )
    return ", ".join(f"{name} {value}" for name, value in shown)


def error_lines(examples: Mapping[str, str], most: int = 5) -> list[str]:
    """`ModelError: what one rollout said`, a line for each of the first kinds of error, safe for a terminal."""
    lines = [f"{safe_text(kind, 80)}: {safe_text(text, 600)}" for kind, text in list(examples.items())[:most]]
    return [*lines, f"and {len(examples) - most} more kinds"] if len(examples) > most else lines


def usage_text(usage: Mapping[str, float]) -> str:
    """`1,200 in, 30 out, $0.0040`: tokens of a model, and dollars where they are known."""
    parts = [f"{usage.get('input_tokens', 0):,.0f} in", f"{usage.get('output_tokens', 0):,.0f} out"]
    return ", ".join([*parts, f"${usage['cost']:.4f}"] if "cost" in usage else parts)


def call_text(call: Any) -> str:
    """A tool call as `name(arguments)`, from any of the forms that rows hold."""
    try:
        read = as_tool_call(call)
    except (TypeError, ValueError):
        return str(call)
    return f"{read.name}({read.arguments})"


def listed(value: Any) -> list[Any]:
    """`value` if it is a list, else an empty one: a field of a stored row may be anything."""
    return value if isinstance(value, list) else []
