"""Numbers and tool calls as short text for terminals and pages, not escaped; lines of a command's output: a fact with
its label, records in aligned columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from whet.messages import as_tool_call
from whet.system.terminal import safe_text

LABEL = 11
"""Characters of a line's label."""
LONGEST_CELL = 10_000


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


def print_fact(label: str, text: str, console: Console, *, fold: bool = True) -> None:
    """A line with a label; in a terminal it is wrapped behind the label, unless it is meant to be copied."""
    if fold and console.is_terminal:
        room = max(20, console.width - LABEL)
        text = f"\n{' ' * LABEL}".join(textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False))
    console.print(Text.assemble((f"{label:<{LABEL - 1}} ", "bold"), text), soft_wrap=True)


def print_rows(rows: Sequence[Mapping[str, str]], console: Console, right: Collection[str] = ()) -> None:
    """Aligned columns under their names, those in `right` to the right; columns without any value are left out.

    Lines are not wrapped.
    """
    columns = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if not rows or any(row.get(name) for row in rows)
    ]
    cells = [columns, *([row.get(name, "") for name in columns] for row in rows)]
    cells = [[safe_text(cell, LONGEST_CELL) for cell in line] for line in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for index, line in enumerate(cells):
        padded = [
            f"{cell:>{width}}" if name in right else f"{cell:<{width}}"
            for cell, width, name in zip(line, widths, columns, strict=True)
        ]
        console.print(Text("  ".join(padded).rstrip(), "bold" if index == 0 else ""), soft_wrap=True)
