"""Long texts made to fit: head and tail stay, and what was left out is named. Pure.

    fit(["short", "a very long ..."], 1000)     # the short one whole, the long one cut to what is left

Texts that need less than an equal share of the room are kept whole, and the rest of the room is divided among the
others.
"""

from __future__ import annotations

from collections.abc import Sequence

SMALLEST = 160
"""Characters below which an excerpt is of no use; whole pieces are left out instead."""
HEAD = 0.6
"""Share of an excerpt that is its beginning."""


def excerpt(text: str, size: int) -> str:
    """`text` in about `size` characters, and what is missing of it said where it is missing."""
    if len(text) <= size:
        return text
    kept = max(0, size - len(_note(len(text))))
    head, tail = text[: round(kept * HEAD)], text[len(text) - kept + round(kept * HEAD) :]
    return f"{head}{_note(len(text) - kept)}{tail}"


def _note(missing: int) -> str:
    return f" [... {missing:,} characters left out ...] "


def shares(sizes: Sequence[int], room: int) -> list[int]:
    """The share of `room` that each text gets, at most its size."""
    given = [0] * len(sizes)
    left = max(0, room)
    for index, number in enumerate(sorted(range(len(sizes)), key=lambda one: sizes[one])):
        given[number] = min(sizes[number], left // (len(sizes) - index))
        left -= given[number]
    return given


def fit(texts: Sequence[str], room: int, extra: Sequence[int] | None = None) -> list[str | None]:
    """Each text or an excerpt of it, together in about `room` characters; None for one that is left out.

    `extra` are the characters that each text needs in addition, where it is kept. Where there are too many texts to
    give each a useful share, those in the middle are left out.
    """
    kept = list(range(len(texts)))
    while True:
        sizes = [len(texts[number]) for number in kept]
        overhead = sum(extra[number] for number in kept) if extra is not None else 0
        given = shares(sizes, room - overhead)
        starved = any(share < min(SMALLEST, size) for share, size in zip(given, sizes, strict=True))
        if not starved or len(kept) <= 2:
            break
        surplus = min(len(kept) - 2, 1 + len(kept) // 16)
        first = (len(kept) - surplus + 1) // 2
        del kept[first : first + surplus]
    fitted: list[str | None] = [None] * len(texts)
    for number, share in zip(kept, given, strict=True):
        fitted[number] = excerpt(texts[number], share)
    return fitted
