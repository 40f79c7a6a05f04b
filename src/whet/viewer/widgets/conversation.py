"""A rollout as a person reads it: who said what, in pieces that can be folded or shown whole. Pure.

A row may come from any program, so nothing is taken for granted: what is no message is shown as the JSON it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from whet.messages import readable_text
from whet.viewer.calls import Call, tool_calls
from whet.viewer.widgets.lines import Line, line, wrapped

CUT = 24
"""Lines that a piece may have before it is cut,"""
KEPT = 16
"""and how many are shown of one that is cut."""
WHOLE = 1_000_000
"""Characters that are shown of a piece at most; an export has them all."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One thing that was said, thought, called or answered.

    `key` stays the same while the rollout is shown; `begins` says that a message begins here, named by `title`.
    """

    key: str
    title: str
    text: str
    style: str = ""
    role: str = ""
    begins: bool = False
    folded: bool = False  # until it is opened


@dataclass(slots=True)
class Folding:
    """What a person opened: reasoning that is folded otherwise, and long pieces that are cut otherwise."""

    opened: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)

    def is_folded(self, piece: Piece, found: bool = False) -> bool:
        """Whether only the title is shown; what a search found stays open unless it was closed."""
        return piece.key in self.closed or (piece.folded and not found and piece.key not in self.opened)

    def toggle(self, piece: Piece, cut: bool) -> None:
        """What Enter does: open what is folded, show whole what is cut, fold or cut again what is open."""
        if self.is_folded(piece):
            self.closed.discard(piece.key)
            self.opened.add(piece.key)
        elif cut:
            self.whole ^= {piece.key}
        else:
            self.opened.discard(piece.key)
            self.closed.add(piece.key)


def pieces(row: Mapping[str, Any]) -> list[Piece]:
    """The prompt and the completion of a rollout, piece by piece."""
    found: list[Piece] = []
    calls: dict[str, str] = {}  # names of the tools that were called, by the call's id
    for part in ("prompt", "completion"):
        for at, message in enumerate(_messages(row.get(part), part)):
            found += _pieces_of(message, f"{part}.{at}", calls)
    return found


def _messages(value: Any, part: str) -> list[Any]:
    if isinstance(value, str):
        return [{"role": "assistant" if part == "completion" else "text", "content": value}]
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def _pieces_of(message: Any, key: str, calls: dict[str, str]) -> Iterator[Piece]:
    if not isinstance(message, Mapping):
        yield Piece(key, "not a message", _json(message), "dim", begins=True)
        return
    role = str(message.get("role") or "no role")
    style = role if role in ("assistant", "user", "system", "tool") else "bold"
    title = role
    if role == "tool":
        title = f"tool {calls.get(str(message.get('tool_call_id')), message.get('name') or '')}".strip()
    content = message.get("content")
    text = readable_text(content) if isinstance(content, str | list) else "" if content is None else _json(content)
    yield Piece(key, title, text, role=style, begins=True)
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        said = reasoning if isinstance(reasoning, str) else _json(reasoning)
        yield Piece(f"{key}.reasoning", "reasoning", said, "reasoning", folded=True)
    for at, call in enumerate(tool_calls(message)):
        calls[call.id] = call.name
        yield Piece(f"{key}.call{at}", f"calls {call.name or '(no name)'}", arguments_text(call), "name")


def arguments_text(call: Call) -> str:
    """The arguments of a call, one a line; text of several lines keeps them, under its name."""
    value = call.parsed
    if isinstance(value, str):
        return call.arguments
    if not isinstance(value, dict):
        return _json(value)
    lines = []
    for name, given in value.items():
        if isinstance(given, str) and "\n" in given:
            lines.append(f"{name}:")
            lines += [f"    {part}" for part in given.split("\n")]
        else:
            lines.append(f"{name}: {_json(given)}")
    return "\n".join(lines)


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, dict | list) else None, default=str)
    except (ValueError, RecursionError):
        return repr(value)


@dataclass(frozen=True, slots=True)
class Layout:
    """The lines of a conversation, where each piece begins, and which pieces are longer than a cut."""

    lines: list[Line]
    starts: dict[str, int]
    long: set[str]


def lay_out(
    conversation: Sequence[Piece], width: int, folding: Folding, *, query: str = "", current: str = ""
) -> Layout:
    """The lines of these pieces for a window of `width` cells; the piece `current` is marked."""
    lines: list[Line] = []
    starts: dict[str, int] = {}
    long: set[str] = set()
    for piece in conversation:
        if piece.begins and lines:
            lines.append(line(""))
        starts[piece.key] = len(lines)
        found = bool(query) and query.casefold() in piece.text.casefold()
        folded = folding.is_folded(piece, found)
        body, is_long = ([], False) if folded else _body(piece, width, found or piece.key in folding.whole, query)
        if is_long:
            long.add(piece.key)
        lines.append(_title(piece, width, folded, piece.key == current))
        lines += body
    return Layout(lines, starts, long)


def _title(piece: Piece, width: int, folded: bool, current: bool) -> Line:
    mark = ("▌", "bold") if current else " "
    size = f", {len(piece.text):,} characters" if folded and piece.text else ""
    if piece.begins:
        rule = "─" * max(0, width - len(piece.title) - len(size) - 4)
        return line(mark, (piece.title, piece.role), (f"{size} {rule}", "dim"), action=piece.key, limit=width)
    return line(mark, "▸ " if folded else "▾ ", (piece.title, piece.style), (size, "dim"), action=piece.key)


def _body(piece: Piece, width: int, whole: bool, query: str) -> tuple[list[Line], bool]:
    """The lines under a title, and whether there are more of them than are shown at first."""
    if not piece.text:
        return [], False
    indent = "  " if piece.begins else "    "
    style = piece.style if piece.style in ("reasoning", "dim") else ""
    # As many characters as a cut could need, so that a text of any length costs no more than what is shown of it.
    head = piece.text[: (CUT + 1) * width]
    shown = list(islice(wrapped(head, width - 1, style, indent, query), CUT + 1))
    is_long = len(shown) > CUT or len(head) < len(piece.text)
    if not is_long:
        return shown, False
    if not whole:
        count = f"{len(piece.text):,}"
        more = line(indent, (f"show all {count} characters", "link"), action=piece.key)
        return [*shown[:KEPT], more], True
    shown = list(wrapped(piece.text[:WHOLE], width - 1, style, indent, query))
    if len(piece.text) > WHOLE:
        left = f"{len(piece.text) - WHOLE:,} more characters are not shown; an export has them"
        shown.append(line(indent, (left, "middling")))
    return shown, True
