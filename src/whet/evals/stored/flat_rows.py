"""Rollouts as rows of one table: the same columns for all, each of one type. What a column cannot hold goes to `other`.

| column | type | what it is |
| --- | --- | --- |
| `example_id` | integer, or text where some id is none | the task |
| `rollout` | integer | which attempt at the task, from 0 |
| `reward` | number | absent where the rollout failed |
| `error`, `error_message` | text | kind of failure, and its chain of causes |
| `question`, `response`, `answer` | text | last user message, last model message, the right answer |
| `prompt`, `completion` | messages | see `MESSAGE_FIELDS`; JSON text in CSV |
| `stop_condition`, `is_completed`, `is_truncated` | text, yes or no | how it ended |
| `seconds`, `input_tokens`, `output_tokens`, `cost` | number | what it took; `cost` in dollars |
| `metric_<name>` | number | one for each metric |
| `info`, `tool_defs`, `timing`, `<state column>` | JSON text | as saved |
| `other` | JSON text | everything else of the row |

Pure, but for reading the rows twice: once to know the columns, once to give them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from whet.display.text import listed
from whet.messages import readable_text, whole_characters
from whet.types import RolloutOutput

Kind = Literal["integer", "number", "yes or no", "text", "json", "messages"]

MESSAGE_FIELDS = ("role", "content", "reasoning_content", "tool_call_id", "name")
"""Text of a message; further fields: `tool_calls`, a list of JSON text, and `extra`, what else it has as JSON text.

Content that is a list of parts is JSON text too.
"""
FIRST: tuple[tuple[str, Kind], ...] = (
    ("example_id", "integer"),
    ("rollout", "integer"),
    ("reward", "number"),
    ("error", "text"),
    ("error_message", "text"),
    ("question", "text"),
    ("response", "text"),
    ("answer", "text"),
    ("stop_condition", "text"),
    ("is_completed", "yes or no"),
    ("is_truncated", "yes or no"),
    ("seconds", "number"),
    ("input_tokens", "number"),
    ("output_tokens", "number"),
    ("cost", "number"),
)
LAST: tuple[tuple[str, Kind], ...] = (
    ("prompt", "messages"),
    ("completion", "messages"),
    ("info", "json"),
    ("tool_defs", "json"),
    ("timing", "json"),
    ("other", "json"),
)
TAKEN = {
    *("example_id", "rollout", "reward", "error", "error_chain", "long_error_chain", "answer", "stop_condition"),
    *("is_completed", "is_truncated", "token_usage", "prompt", "completion", "info", "tool_defs", "timing", "metrics"),
}
"""Fields of a row that have their columns."""
LARGEST_INTEGER = 2**63


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one table, in order."""

    kinds: dict[str, Kind]
    metrics: tuple[str, ...]
    state: tuple[str, ...]


def find_columns(rows: Iterable[RolloutOutput], state_columns: Sequence[str] = ()) -> Columns:
    """The columns that hold all of `rows`; `state_columns` are those of the evaluation's metadata."""
    ids_are_integers = True
    metrics: set[str] = set()
    for row in rows:
        ids_are_integers = ids_are_integers and _is_integer(row["example_id"])
        metrics |= row["metrics"].keys()
    state = tuple(name for name in dict.fromkeys(state_columns) if name not in TAKEN and name not in metrics)
    kinds: dict[str, Kind] = dict(FIRST)
    if not ids_are_integers:
        kinds["example_id"] = "text"
    kinds |= {f"metric_{name}": "number" for name in sorted(metrics)}
    # A state column may be called like a column of this table.
    state = tuple(name for name in state if name not in kinds and name not in dict(LAST))
    kinds |= dict.fromkeys(state, "json")
    kinds |= dict(LAST)
    return Columns(kinds, tuple(sorted(metrics)), state)


def flat(row: RolloutOutput, columns: Columns) -> dict[str, Any]:
    """A row with exactly these columns; None where it has no such value. Half characters are replaced."""
    error = row.get("error") or {}
    usage = row.get("token_usage") or {}
    known = {*TAKEN, *columns.metrics, *columns.state}
    other = {key: value for key, value in row.items() if key not in known}
    cells: dict[str, Any] = {
        "example_id": row["example_id"] if columns.kinds["example_id"] == "integer" else _text(row["example_id"]),
        "rollout": row["rollout"] if _is_integer(row.get("rollout")) else None,
        "reward": _number(row.get("reward")) if not error else None,
        "error": _text(error.get("error")),
        "error_message": _text(error.get("error_chain_repr")),
        "question": _said(row.get("prompt"), "user"),
        "response": _said(row.get("completion"), "assistant"),
        "answer": _text(row.get("answer")),
        "stop_condition": _text(row.get("stop_condition")),
        "is_completed": bool(row.get("is_completed")),
        "is_truncated": bool(row.get("is_truncated")),
        "seconds": _number(((row.get("timing") or {}).get("generation") or {}).get("duration")),
        "input_tokens": _number(usage.get("input_tokens")),
        "output_tokens": _number(usage.get("output_tokens")),
        "cost": _number(usage.get("cost")),
        "prompt": _messages(row.get("prompt")),
        "completion": _messages(row.get("completion")),
        "other": _json(other) if other else None,
    }
    for name in ("info", "tool_defs", "timing", *columns.state):
        cells[name] = _json(row[name]) if row.get(name) not in (None, [], {}) else None
    for name in columns.metrics:
        cells[f"metric_{name}"] = _number(row["metrics"].get(name))
    return {name: cells[name] for name in columns.kinds}


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -LARGEST_INTEGER <= value < LARGEST_INTEGER


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return str(whole_characters(value if isinstance(value, str) else _json(value)))


def _json(value: Any) -> str:
    return json.dumps(whole_characters(value), ensure_ascii=False)


def _said(messages: Any, role: str) -> str | None:
    """The last message of a role, as text."""
    if isinstance(messages, str):
        return _text(messages)
    found = [one for one in listed(messages) if isinstance(one, Mapping) and one.get("role") == role]
    return _text(readable_text(found[-1].get("content"))) if found else None


def _messages(value: Any) -> list[dict[str, Any]] | None:
    if value is None:
        return None
    if isinstance(value, str):
        value = [{"role": "text", "content": value}]
    return [_message(message) for message in listed(value) if isinstance(message, Mapping)]


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    extra = {key: value for key, value in message.items() if key not in (*MESSAGE_FIELDS, "tool_calls")}
    return {
        **{name: _text(message.get(name)) for name in MESSAGE_FIELDS},
        "tool_calls": [_text(call) for call in calls] if isinstance(calls, list) else None,
        "extra": _json(extra) if extra else None,
    }
