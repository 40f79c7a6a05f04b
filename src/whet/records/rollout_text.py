"""A rollout as text: its messages in pieces, the facts of its row, and how numbers are written. Pure.

A row may come from any program, so nothing is taken for granted: what is no message is shown as the JSON it is. Names
of styles are those of `display/lines.py`; nothing here is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from whet.messages import readable_text
from whet.records.entries import RowToolCall, as_float, tool_calls
from whet.records.heads import Head
from whet.system.terminal import duration


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


def pieces(row: Mapping[str, Any]) -> list[MessagePiece]:
    """The prompt and the completion of a rollout, piece by piece."""
    made: list[MessagePiece] = []
    calls: dict[str, str] = {}  # names of the tools that were called, by the call's id
    for part in ("prompt", "completion"):
        for at, message in enumerate(_messages(row.get(part), part)):
            made += _pieces_of(message, f"{part}.{at}", calls)
    return made


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


SHOWN_ELSEWHERE = {
    "prompt", "completion", "reward", "advantage", "metrics", "error", "error_chain", "long_error_chain", "answer",
    "example_id", "environment", "group", "stop_condition", "is_truncated", "is_completed", "token_usage", "timing",
    "turns", "trajectory", "tool_defs", "task", "info", "sampling", "judge_usage",
}  # fmt: skip
"""Keys of a row that are not repeated under `other columns`."""

Fact = tuple[str, str, str]
"""A name, a value and the name of its style; without a name the value takes the whole line."""


def details(row: Mapping[str, Any], head: Head, passed: float) -> dict[str, list[Fact]]:
    """Every fact of a row that is no message, under headings. `passed`: the reward from which it counts as passed."""
    titled = {
        "": _facts(row, head, passed),
        "metrics": _metrics(row.get("metrics")),
        "error": _error(row),
        "tokens": _pairs(row.get("token_usage")),
        "tokens of judges": _pairs(row.get("judge_usage")),
        "time": _timing(row.get("timing")),
        "answer": _value(row.get("answer")),
        "sampling": _pairs(row.get("sampling")),
        "info": _value(row.get("info")),
        "tools": _tools(row.get("tool_defs")),
        "other columns": _others(row),
    }
    return {title: listed for title, facts in titled.items() if (listed := list(facts))}


def _facts(row: Mapping[str, Any], head: Head, passed: float) -> Iterator[Fact]:
    known: tuple[tuple[str, object, str], ...] = (
        ("reward", number(head.reward) or "none", reward_style(head.reward, passed)),
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
        yield str(name), number(as_float(value)) if is_number else _text(value), ""


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
            yield name, seconds(as_float(value)) if value >= 0.05 else f"{1000 * as_float(value):.1f} ms", ""


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
    columns_too = metrics if isinstance(metrics, Mapping) else {}  # in rows of older versions
    for name, value in row.items():
        if name not in SHOWN_ELSEWHERE and value is not None and columns_too.get(name) != value:
            yield str(name), _text(value), ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value, indent=None)


def candidate_style(name: str) -> str:
    return "good" if name.endswith("accepted") else "dim" if name.endswith("rejected") else ""


def part_name(head: Head, label: str = "") -> str:
    """Where in a run a rollout belongs: the step, after `label`, or which evaluation."""
    if head.part.startswith("step_") and head.step is not None:
        return f"{label}{head.step}"
    return head.part.replace("_", " ")


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"


def signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}" if abs(value) < 1000 else f"{value:+.2g}"


def signed_style(value: float | None) -> str:
    return "" if not value else "good" if value > 0 else "bad"


def seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f} s" if value < 10 else duration(value) if value < 1e9 else f"{value:.3g} s"


def reward_style(reward: float | None, passed: float) -> str:
    if reward is None:
        return "dim"
    return "good" if reward >= passed else "middling" if reward > 0 else "bad"


# What pages show of a rollout's messages: pieces to read, cut where they are long.


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
