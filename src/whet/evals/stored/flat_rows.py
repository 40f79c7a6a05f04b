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
from collections.abc import Callable, Iterable, Mapping, Sequence
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
Cell = Callable[[Mapping[str, Any]], Any]
FIRST: dict[str, tuple[Kind, Cell]] = {
    "example_id": ("integer", lambda row: row["example_id"]),
    "rollout": ("integer", lambda row: row["rollout"] if _is_integer(row.get("rollout")) else None),
    "reward": ("number", lambda row: None if row.get("error") else _number(row.get("reward"))),
    "error": ("text", lambda row: _text(_part(row, "error").get("error"))),
    "error_message": ("text", lambda row: _text(_part(row, "error").get("error_chain_repr"))),
    "question": ("text", lambda row: _last_text(row.get("prompt"), "user")),
    "response": ("text", lambda row: _last_text(row.get("completion"), "assistant")),
    "answer": ("text", lambda row: _text(row.get("answer"))),
    "stop_condition": ("text", lambda row: _text(row.get("stop_condition"))),
    "is_completed": ("yes or no", lambda row: bool(row.get("is_completed"))),
    "is_truncated": ("yes or no", lambda row: bool(row.get("is_truncated"))),
    "seconds": ("number", lambda row: _number(_part(_part(row, "timing"), "generation").get("duration"))),
    "input_tokens": ("number", lambda row: _number(_part(row, "token_usage").get("input_tokens"))),
    "output_tokens": ("number", lambda row: _number(_part(row, "token_usage").get("output_tokens"))),
    "cost": ("number", lambda row: _number(_part(row, "token_usage").get("cost"))),
}
LAST: dict[str, tuple[Kind, Cell]] = {
    "prompt": ("messages", lambda row: _messages(row.get("prompt"))),
    "completion": ("messages", lambda row: _messages(row.get("completion"))),
    "info": ("json", lambda row: _filled_json(row.get("info"))),
    "tool_defs": ("json", lambda row: _filled_json(row.get("tool_defs"))),
    "timing": ("json", lambda row: _filled_json(row.get("timing"))),
}
OTHER = "other"
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
    kinds: dict[str, Kind] = {name: kind for name, (kind, _) in FIRST.items()}
    if not ids_are_integers:
        kinds["example_id"] = "text"
    kinds |= {f"metric_{name}": "number" for name in sorted(metrics)}
    # A state column may be called like a field of a row or a column of this table.
    taken = {*TAKEN, *kinds, *LAST, OTHER}
    state = tuple(name for name in dict.fromkeys(state_columns) if name not in taken)
    kinds |= dict.fromkeys(state, "json")
    kinds |= {name: kind for name, (kind, _) in LAST.items()}
    kinds[OTHER] = "json"
    return Columns(kinds, tuple(sorted(metrics)), state)


def flat(row: RolloutOutput, columns: Columns) -> dict[str, Any]:
    """A row with exactly these columns; None where it has no such value. Half characters are replaced."""
    known = {*TAKEN, *columns.state}
    known |= {name for name, value in row["metrics"].items() if row.get(name) == value}  # a column too in old rows
    cells = {name: value(row) for name, (_, value) in (FIRST | LAST).items()}
    if columns.kinds["example_id"] == "text":
        cells["example_id"] = _text(row["example_id"])
    cells |= {f"metric_{name}": _number(row["metrics"].get(name)) for name in columns.metrics}
    cells |= {name: _filled_json(row.get(name)) for name in columns.state}
    cells[OTHER] = _filled_json({key: value for key, value in row.items() if key not in known})
    return {name: cells[name] for name in columns.kinds}


def _part(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The table of this name; an empty one where the row has none."""
    return row.get(name) or {}


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


def _filled_json(value: Any) -> str | None:
    """As JSON text; None where there is nothing in it."""
    return None if value in (None, [], {}) else _json(value)


def _last_text(messages: Any, role: str) -> str | None:
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
