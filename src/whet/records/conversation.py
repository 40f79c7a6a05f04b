"""What pages show of a rollout's messages: pieces to read, cut where they are long.

Pure. All text is as the model wrote it; templates escape it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from whet.records.rollout_text import MessagePiece, pieces


class Shown(NamedTuple):
    """How much of a conversation a page has."""

    first: int = 6_000  # characters of a text that are shown at once; the rest unfolds
    most: int = 400_000  # characters of a text that a page has at most; `whet view` and the data have all
    messages: int = 400  # that a page has at most: the first and the last


WHOLE, EXCERPT = Shown(), Shown(4_000, 4_000, 40)
"""On a page of its own, and in a report."""


@dataclass(frozen=True, slots=True)
class PagePart:
    """A text of a message: what was said, its reasoning, or a call of a tool."""

    kind: str  # text, reasoning, call
    title: str
    text: str
    rest: str = ""  # what follows, folded
    left_out: int = 0  # characters after that, which the page does not have


@dataclass(frozen=True, slots=True)
class PageMessage:
    """One message of a rollout."""

    key: str
    role: str
    title: str
    parts: list[PagePart] = field(default_factory=list)
    hidden: int = 0  # stands for so many messages that are left out


def conversation(row: Mapping[str, Any], part: str = "", shown: Shown = WHOLE) -> list[PageMessage]:
    """The messages of a row; `part`: those of its `prompt` or its `completion` alone."""
    messages: list[PageMessage] = []
    for piece in pieces(row):
        if not piece.key.startswith(part):
            continue
        if piece.begins:
            role = piece.role if piece.role in ("system", "user", "assistant", "tool") else "other"
            messages.append(PageMessage(piece.key, role, piece.title))
        if piece.text or not piece.begins:
            messages[-1].parts.append(_part(piece, shown))
    hidden = len(messages) - shown.messages
    if hidden <= 0:
        return messages
    half = shown.messages // 2
    return [*messages[:half], PageMessage("hidden", "other", "", hidden=hidden), *messages[-half:]]


def _part(piece: MessagePiece, shown: Shown) -> PagePart:
    kind = "text" if piece.begins else "reasoning" if piece.folded else "call"
    title = "" if piece.begins else piece.title
    if len(piece.text) <= min(shown.first * 3 // 2, shown.most):
        return PagePart(kind, title, piece.text)
    return PagePart(
        kind,
        title,
        piece.text[: shown.first],
        rest=piece.text[shown.first : shown.most],
        left_out=max(0, len(piece.text) - shown.most),
    )
