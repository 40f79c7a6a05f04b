"""Lines of a command's output: a fact with its label, records in aligned columns."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from whet.system.terminal import safe_text

LABEL = 11
LONGEST_CELL = 10_000
"""Characters of a line's label."""


def print_fact(label: str, text: str, console: Console, *, fold: bool = True) -> None:
    """A line with a label; in a terminal it is wrapped behind the label, unless it is meant to be copied."""
    if fold and console.is_terminal:
        room = max(20, console.width - LABEL)
        text = f"\n{' ' * LABEL}".join(textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False))
    console.print(Text.assemble((f"{label:<{LABEL}}", "bold"), text), soft_wrap=True)


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
