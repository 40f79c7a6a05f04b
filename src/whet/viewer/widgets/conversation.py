"""A rollout as lines to read: the messages in pieces that can be folded or cut, and the details of its row. Pure.

A row may come from any program, so nothing is taken for granted: what is no message is shown as the JSON it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from whet.messages import readable_text
from whet.viewer.entries import RowToolCall, tool_calls
from whet.viewer.heads import Head
from whet.viewer.widgets.lines import StyledLine, line, wrapped
from whet.viewer.widgets.rollouts import number, part_name, reward_bar, reward_style, seconds, signed, signed_style

CUT = 24
"""Lines that a piece may have before it is cut,"""
KEPT = 16
"""and how many are shown of one that is cut."""
WHOLE = 1_000_000
"""Characters that are shown of a piece at most; an export has them all."""


@dataclass(frozen=True, slots=True)
class MessagePiece:
    """One part of a conversation: a message, its reasoning, or a tool call.

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
    """What the user opened: reasoning that is folded by default, and long pieces that are cut by default."""

    opened: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)

    def is_folded(self, piece: MessagePiece, found: bool = False) -> bool:
        """Whether only the title is shown; a piece with a match stays open unless it was closed."""
        return piece.key in self.closed or (piece.folded and not found and piece.key not in self.opened)

    def toggle(self, piece: MessagePiece, cut: bool) -> None:
        """What Enter does: open what is folded, show whole what is cut, fold or cut again what is open."""
        if self.is_folded(piece):
            self.closed.discard(piece.key)
            self.opened.add(piece.key)
        elif cut:
            self.whole ^= {piece.key}
        else:
            self.opened.discard(piece.key)
            self.closed.add(piece.key)


def pieces(row: Mapping[str, Any]) -> list[MessagePiece]:
    """The prompt and the completion of a rollout, piece by piece."""
    found: list[MessagePiece] = []
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


def _pieces_of(message: Any, key: str, calls: dict[str, str]) -> Iterator[MessagePiece]:
    if not isinstance(message, Mapping):
        yield MessagePiece(key, "not a message", _json(message), "dim", begins=True)
        return
    role = str(message.get("role") or "no role")
    style = role if role in ("assistant", "user", "system", "tool") else "bold"
    title = role
    if role == "tool":
        title = f"tool {calls.get(str(message.get('tool_call_id')), message.get('name') or '')}".strip()
    content = message.get("content")
    text = readable_text(content) if isinstance(content, str | list) else "" if content is None else _json(content)
    yield MessagePiece(key, title, text, role=style, begins=True)
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        said = reasoning if isinstance(reasoning, str) else _json(reasoning)
        yield MessagePiece(f"{key}.reasoning", "reasoning", said, "reasoning", folded=True)
    for at, call in enumerate(tool_calls(message)):
        calls[call.id] = call.name
        yield MessagePiece(f"{key}.call{at}", f"calls {call.name or '(no name)'}", arguments_text(call), "name")


def arguments_text(call: RowToolCall) -> str:
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


def _json(value: Any, indent: int | None = 2) -> str:
    indent = indent if isinstance(value, dict | list) else None
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    except (ValueError, RecursionError):
        return repr(value)


@dataclass(frozen=True, slots=True)
class ConversationLayout:
    """The lines of a conversation, where each piece begins, and which pieces are longer than a cut."""

    lines: list[StyledLine]
    starts: dict[str, int]
    long: set[str]


def lay_out(
    conversation: Sequence[MessagePiece], width: int, folding: Folding, *, query: str = "", current: str = ""
) -> ConversationLayout:
    """The lines of these pieces for a window of `width` cells; the piece `current` is marked."""
    lines: list[StyledLine] = []
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
    return ConversationLayout(lines, starts, long)


def _title(piece: MessagePiece, width: int, folded: bool, current: bool) -> StyledLine:
    mark = ("▌", "bold") if current else " "
    size = f", {len(piece.text):,} characters" if folded and piece.text else ""
    if piece.begins:
        rule = "─" * max(0, width - len(piece.title) - len(size) - 4)
        return line(mark, (piece.title, piece.role), (f"{size} {rule}", "dim"), action=piece.key, limit=width)
    return line(mark, "▸ " if folded else "▾ ", (piece.title, piece.style), (size, "dim"), action=piece.key)


def _body(piece: MessagePiece, width: int, whole: bool, query: str) -> tuple[list[StyledLine], bool]:
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


SHOWN_ELSEWHERE = {
    "prompt", "completion", "reward", "advantage", "metrics", "error", "error_chain", "long_error_chain", "answer",
    "example_id", "environment", "group", "stop_condition", "is_truncated", "is_completed", "token_usage", "timing",
    "turns", "trajectory", "tool_defs", "task", "info", "sampling", "judge_usage",
}  # fmt: skip
"""Keys of a row that are not repeated under `other columns`."""
LONGEST = 2000  # characters of a value that are shown here


def detail_lines(row: Mapping[str, Any], head: Head, passed: float, width: int) -> list[StyledLine]:
    """Every fact, under headings."""
    lines: list[StyledLine] = []
    for title, facts in (
        ("", _facts(row, head, passed)),
        ("metrics", _metrics(row.get("metrics"))),
        ("error", _error(row)),
        ("tokens", _pairs(row.get("token_usage"))),
        ("tokens of judges", _pairs(row.get("judge_usage"))),
        ("time", _timing(row.get("timing"))),
        ("answer", _value(row.get("answer"))),
        ("sampling", _pairs(row.get("sampling"))),
        ("info", _value(row.get("info"))),
        ("tools", _tools(row.get("tool_defs"))),
        ("other columns", _others(row)),
    ):
        body = [made for name, value, style in facts for made in _fact(name, value, style, width)]
        if body:
            lines += [line("")] if lines else []
            lines += [line((title, "bold"))] if title else []
            lines += body
    return lines


Fact = tuple[str, str, str]
"""A name, a value and the name of its style; without a name the value takes the whole line."""


def _fact(name: str, value: str, style: str, width: int) -> Iterator[StyledLine]:
    if not name:
        yield from wrapped(value[:LONGEST], width, style)
    elif "\n" not in value and len(name) + len(value) + 2 <= width:
        yield line((f"{name}  ", "dim"), (value, style))
    else:
        yield line((name, "dim"))
        yield from wrapped(value[:LONGEST], width, style, "  ")


def _facts(row: Mapping[str, Any], head: Head, passed: float) -> Iterator[Fact]:
    reward = f"{number(head.reward)} {reward_bar(head.reward)}".rstrip() or "none"
    known: tuple[tuple[str, object, str], ...] = (
        ("reward", reward, reward_style(head.reward, passed)),
        ("advantage", signed(head.advantage), signed_style(head.advantage)),
        ("environment", head.environment, "name"),
        ("step", head.part and part_name(head), ""),
        ("sampling", head.sampling, ""),
        ("task", "none" if head.example_id is None else head.example_id, ""),
        ("group", row.get("group"), ""),
        ("stop condition", head.stop_condition or "none", ""),
        ("truncated", "yes" if head.truncated else None, "middling"),
        ("turns", head.turns, ""),
    )
    for name, value, style in known:
        if value is not None and value != "":
            yield name, str(value), style


def _metrics(metrics: Any) -> Iterator[Fact]:
    for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        yield str(name), number(float(value)) if is_number else _text(value), ""


def _error(row: Mapping[str, Any]) -> Iterator[Fact]:
    """The chain of causes, the error first, one a line."""
    error = row.get("error")
    if not error:
        return
    chain = row.get("error_chain") or (error.get("error_chain_repr") if isinstance(error, Mapping) else None)
    for at, link in enumerate(str(chain or _text(error)).split(" -> ")):
        yield "", link if at == 0 else f"because of {link}", "bad"


def _timing(timing: Any) -> Iterator[Fact]:
    if not isinstance(timing, Mapping):
        return
    for name in ("total", "setup", "generation", "model", "env", "scoring"):
        value = timing.get(name)
        value = value.get("duration") if isinstance(value, Mapping) else value
        if isinstance(value, int | float):
            yield name, seconds(float(value)) if value >= 0.05 else f"{1000 * value:.1f} ms", ""


def _pairs(values: Any) -> Iterator[Fact]:
    for name, value in values.items() if isinstance(values, Mapping) else ():
        yield str(name).replace("_", " "), f"{value:,.6g}" if isinstance(value, float) else _text(value), ""
    if values and not isinstance(values, Mapping):
        yield "", _text(values), ""


def _value(value: Any) -> Iterator[Fact]:
    if value not in (None, "", {}, []):
        yield "", _text(value), ""


def _tools(tools: Any) -> Iterator[Fact]:
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, Mapping):
            yield str(tool.get("name")), _text(tool.get("description") or ""), ""


def _others(row: Mapping[str, Any]) -> Iterator[Fact]:
    metrics = row.get("metrics")
    known = SHOWN_ELSEWHERE | (set(metrics) if isinstance(metrics, Mapping) else set())
    for name, value in row.items():
        if name not in known and value is not None:
            yield str(name), _text(value), ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value, indent=None)
