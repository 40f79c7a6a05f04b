"""How many columns the KV cache holds, and how many of them a decode step reads. Pure decisions.

A decode step on a CPU is mostly reading keys and values, in products of two or so rows with each slot's columns. Where
those are all the columns there are, one slot's lie right behind the other's, and a column costs less than half of what
it does where part of each slot is skipped. So there the cache is only as wide as the rows are by now, growing as they
do, and a step reads the whole of it. A GPU reads parts as well as the whole, and its memory would be broken up by
rectangles of ever other sizes: there all columns that the rows may come to need are held from the start.
"""

from __future__ import annotations

_WIDTH_STEP = 16
"""Attention over a part spans a multiple of this many columns, which keeps its inner loops on whole vectors."""


def rounded(columns: int) -> int:
    """Rounded up to an eighth of a power of two: growing stays rare, and rows lie close together in memory."""
    step = max(32, 1 << max(columns.bit_length() - 3, 0))
    return -(-columns // step) * step


def columns_held(needed: int, most: int, *, on_cpu: bool) -> int:
    """Columns to hold while rows have need of `needed`, and will of `most` at the end."""
    return min(rounded(needed), most) if on_cpu else most


def columns_read(needed: int, held: int, *, on_cpu: bool) -> int:
    """Columns to read while the longest row has need of `needed`."""
    if on_cpu and 2 * needed > held:
        return held
    return min(-(-needed // _WIDTH_STEP) * _WIDTH_STEP, held)
