"""Long texts made to fit: head and tail stay, and what was left out is named. Pure.

    fit(["short", "a very long ..."], 1000)     # the short one whole, the long one cut to what is left

Room is dealt out as water finds its level: who needs less than an equal share keeps all of it, and what that leaves is
shared by the others.
"""

from __future__ import annotations

from collections.abc import Sequence

SMALLEST = 160
"""Characters below which an excerpt says nothing any more; sooner whole pieces are left out."""
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
    """How much of `room` each of so many wants gets, at most what it asks for."""
    given = [0] * len(sizes)
    left = max(0, room)
    for place, number in enumerate(sorted(range(len(sizes)), key=lambda one: sizes[one])):
        given[number] = min(sizes[number], left // (len(sizes) - place))
        left -= given[number]
    return given


def fit(texts: Sequence[str], room: int, extra: Sequence[int] | None = None) -> list[str | None]:
    """Each text or an excerpt of it, together in about `room` characters; None for one that is left out.

    `extra` are the characters that each needs beside its own, where it is not left out. Where there are more texts than
    would leave each something to say, those in the middle go.
    """
    kept = list(range(len(texts)))
    while True:
        sizes = [len(texts[number]) for number in kept]
        beside = sum(extra[number] for number in kept) if extra is not None else 0
        given = shares(sizes, room - beside)
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
