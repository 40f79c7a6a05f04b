"""What the pages of a rollout and of a group show of messages: pieces to read, and what differs between two of them.

Pure. All text is as the model wrote it; templates escape it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whet.gepa.text_diff import Piece, difference
from whet.viewer.rollout_text import MessagePiece, pieces

FIRST_TEXT = 6_000
"""Characters of a text that are shown at once; the rest unfolds."""
MOST_TEXT = 400_000
"""Characters of a text that a page has at most; `whet view` and the data have all."""
MOST_MESSAGES = 400
"""Messages that a page has at most: the first and the last."""
MOST_COMPARED = 20_000
"""Characters of an answer that is compared with another one."""
EVERY_LINE = 1_000_000


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


def conversation(row: Mapping[str, Any], part: str = "") -> list[PageMessage]:
    """The messages of a row; `part`: those of its `prompt` or its `completion` alone."""
    messages: list[PageMessage] = []
    for piece in pieces(row):
        if not piece.key.startswith(part):
            continue
        if piece.begins:
            role = piece.role if piece.role in ("system", "user", "assistant", "tool") else "other"
            messages.append(PageMessage(piece.key, role, piece.title))
        if piece.text or not piece.begins:
            messages[-1].parts.append(_part(piece))
    hidden = len(messages) - MOST_MESSAGES
    if hidden <= 0:
        return messages
    half = MOST_MESSAGES // 2
    return [*messages[:half], PageMessage("hidden", "other", "", hidden=hidden), *messages[-half:]]


def _part(piece: MessagePiece) -> PagePart:
    kind = "text" if piece.begins else "reasoning" if piece.folded else "call"
    title = "" if piece.begins else piece.title
    if len(piece.text) <= FIRST_TEXT + FIRST_TEXT // 2:
        return PagePart(kind, title, piece.text)
    return PagePart(
        kind,
        title,
        piece.text[:FIRST_TEXT],
        rest=piece.text[FIRST_TEXT:MOST_TEXT],
        left_out=max(0, len(piece.text) - MOST_TEXT),
    )


def compared(text: str, reference: str) -> Sequence[Sequence[Piece]]:
    """The lines of a text, each in pieces that say whether they differ from the reference; none where too long."""
    if max(len(text), len(reference)) > MOST_COMPARED:
        return []
    if text == reference:
        return [((line, False),) for line in text.split("\n")]
    return [line.pieces for line in difference(reference, text, context=EVERY_LINE) if line.kind in ("same", "new")]


def answer_text(row: Mapping[str, Any]) -> str:
    """All that the model said in a rollout, as one text."""
    said = [piece for piece in pieces(row) if piece.key.startswith("completion")]
    return "\n\n".join(f"{piece.title}\n{piece.text}" if not piece.begins else piece.text for piece in said)
