"""TOML and JSON that may come from a stranger: depth and size are bounded before the text is parsed.

A key `a.a.a...` of 32 kB costs `tomllib` 1.5 GB, and values nested a thousand times end every recursive function that
later meets them. Both are refused here with a `ValueError`, as every other text that cannot be read.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

MAX_DEPTH = 100
"""Tables, lists and parts of a dotted key within each other."""
MAX_KEYS = 20_000
"""Keys, parts of dotted keys, tables and lists of a TOML text: tomllib needs up to 1 kB for each."""
MAX_VALUES = 100_000
MAX_TOML = 4 << 20
"""Characters of a TOML text."""
BYTE_ORDER_MARK = "\ufeff"
"""Some editors begin a file of UTF-8 with it."""


class NestingError(ValueError):
    """Values within each other above `MAX_DEPTH`."""

    def __init__(self) -> None:
        super().__init__(f"it is nested too deeply: more than {MAX_DEPTH} levels")


_NOT_JSON_BRACKETS = re.compile(r'"(?:[^"\\]++|\\[\s\S])*+(?:"|\\?\Z)|[^"\[\]{}]++')
_NOT_TOML_MARKS = re.compile(
    r'"""(?:[^"\\]++|\\[\s\S]|"(?!""))*+(?:"""|\\?\Z)'
    r"|'''[\s\S]*?(?:'''|\Z)"
    r'|"(?:[^"\\\n]++|\\[^\n])*+"?'
    r"|'[^'\n]*+'?"
    r"|\#[^\n]*+"
    r"|[^\[\]{}=.,\n\"'#]++"
)
"""Texts, comments and everything else in which no key ends and nothing opens. Linear in the length of the text."""


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises `ValueError` for a text that is not TOML, or that is above the bounds."""
    import tomllib

    text = text.removeprefix(BYTE_ORDER_MARK)
    if len(text) > MAX_TOML:
        raise ValueError(f"it is longer than {MAX_TOML >> 20} MiB")
    marks = _NOT_TOML_MARKS.sub("", text)
    if sum(map(marks.count, ".=[{")) > MAX_KEYS or marks.count(",") > MAX_VALUES:
        raise ValueError(f"it has more than {MAX_KEYS:,} keys, or {MAX_VALUES:,} values")
    if "." * MAX_DEPTH in marks or _depth(marks) > MAX_DEPTH:
        raise NestingError
    tables = tomllib.loads(text)
    if _is_deep(tables):  # dotted keys in tables in dotted keys
        raise NestingError
    return tables


def parse_json(text: str | bytes, most: int | None = None) -> Any:
    """What a text of JSON says. Raises `ValueError` for every text that is none, or that is above the bounds.

    Args:
        most: bytes or characters that it may have.
    """
    if most is not None and len(text) > most:
        raise ValueError(f"it has {len(text):,} bytes; at most {most:,} are read")
    if isinstance(text, bytes | bytearray):
        text = text.decode("utf-8", "surrogatepass")
    text = text.removeprefix(BYTE_ORDER_MARK)
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(_NOT_JSON_BRACKETS.sub("", text)) > MAX_DEPTH:
        raise NestingError
    return json.loads(text)


def as_number(value: Any) -> float | None:
    """A finite number of JSON; None for everything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def as_whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _depth(marks: str) -> int:
    """How many brackets are open at once, at most."""
    depth = deepest = 0
    for mark in marks:
        if mark in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in "]}":
            depth -= 1
    return deepest


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = (item for one in level for item in (one.values() if isinstance(one, dict) else one))
        level = [item for item in inner if isinstance(item, dict | list)]
        if not level:
            return False
    return True
