"""Text for terminals: what a model or an environment wrote, made harmless, and small curves.

Everything a model writes is hostile here: escape sequences could retitle, recolour or reprogram a terminal, control
characters and text-direction marks could make one line pass for another. Nothing here prints.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
NEWLINE = "\N{RETURN SYMBOL}"
BLOCKS = "▁▂▃▄▅▆▇█"


def safe_text(text: object, limit: int = 200) -> str:
    """`text` on one line of at most `limit` characters that cannot move, colour or reorder anything."""
    raw = text if isinstance(text, str) else str(text)
    cut = len(raw) > limit
    raw = raw[:limit].replace("\r\n", "\n")
    safe = raw.translate(_SAFE)
    return f"{safe[: max(0, limit - 1)]}…" if cut else safe


def safe_lines(text: str) -> list[str]:
    """The lines of `text`, each made as harmless as by `safe_text`; tabs reach to every fourth column."""
    lines = text.replace("\r\n", "\n").split("\n")
    return [line.expandtabs(4).translate(_SAFE) for line in lines]


class _Safe(dict[int, str]):
    """For `str.translate`: what a character is shown as, looked up once for each of the common ones."""

    def __missing__(self, code: int) -> str:
        shown = _safe_character(chr(code))
        if code < 0x10000:  # so that no text can make it grow for ever
            self[code] = shown
        return shown


def _safe_character(character: str) -> str:
    if character == "\n":
        return NEWLINE
    if character == "\t" or unicodedata.category(character) == "Zs":
        return " "
    # Not printable: control, format (direction marks, zero-width), surrogate, private use, unassigned, separators.
    return character if character.isprintable() else REPLACEMENT


_SAFE = _Safe()


def sparkline(values: Sequence[float], width: int = 24, low: float | None = None, high: float | None = None) -> str:
    """The last values as a curve one line high, each column the mean of its share of them."""
    if not values:
        return ""
    columns = _columns(values, width)
    bottom = min(columns) if low is None else min(low, *columns)
    top = max(columns) if high is None else max(high, *columns)
    span = top - bottom
    if span <= 1e-9 * max(abs(bottom), abs(top)):
        return BLOCKS[0] * len(columns)
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int((value - bottom) / span * len(BLOCKS)))] for value in columns)


def _columns(values: Sequence[float], width: int) -> list[float]:
    count = len(values)
    if count <= width:
        return list(values)
    edges = [round(index * count / width) for index in range(width + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in itertools.pairwise(edges)]


def duration(seconds: float) -> str:
    """`41 s`, `2:05`, `1:02:03`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"
