"""Which columns of a table fit, and how wide each becomes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GAP = 1


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Of those that do not all fit, the ones with the highest `rank` are left out."""

    key: str
    title: str
    width: int
    rank: int = 0
    right: bool = False
    stretch: bool = False  # takes the room that is left; `width` is its least
    both_ends: bool = False  # of a text that is too long, its beginning and its end are shown


def layout(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """The columns that fit into `width` cells, in their order, each with its width."""
    kept = list(columns)
    while len(kept) > 1 and _needed(kept) > width:
        kept.remove(max(reversed(kept), key=lambda column: column.rank))
    spare = max(0, width - _needed(kept))
    stretched = [column for column in kept if column.stretch]
    shares = {
        column.key: spare // len(stretched) + (at < spare % len(stretched)) for at, column in enumerate(stretched)
    }
    return [(column, min(width, column.width + shares.get(column.key, 0))) for column in kept]


def _needed(columns: Sequence[Column]) -> int:
    return sum(column.width + GAP for column in columns) - GAP
