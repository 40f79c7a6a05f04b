"""What the viewer reads of one row: what its index holds; and tool calls. Pure.

Rows are those of `results.jsonl` (`rollouts/results.py`) and of a run's rollouts (`rl/storage/run_directory.py`,
`gepa/calls/call_log.py`). A field that is missing or of another type than expected is empty: no line stops the index.
Tool calls are JSON text, or one of the shapes that other programs write.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from whet.messages import readable_text
from whet.parsing import parse_json
from whet.records.files import parse_row

QUESTION_LENGTH = 160
NAME_LENGTH = 120


class IndexEntry(NamedTuple):
    """The fields of one line that follow from its content alone. What the row does not say is None."""

    group: str = ""  # equal for the rollouts of a group, within their file
    environment: str | None = None  # None where it is that of the whole file
    error: str | None = None
    stop_condition: str | None = None
    candidate: str | None = None
    sampling: str | None = None  # of a run's held-out tasks: "greedy", "temperature 1"
    truncated: bool = False
    turns: int = 0
    reward: float | None = None
    advantage: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    duration: float | None = None
    example_id: int | str | None = None
    place: int | None = None  # its index in the group
    question: str = ""
    problem: str | None = None  # why the line is no rollout


def read_entry(line: bytes) -> IndexEntry:
    """The entry of a line."""
    try:
        row = parse_row(line)
    except ValueError as error:
        return IndexEntry(problem=str(error))
    return entry_of(row)


def entry_of(row: dict[str, Any]) -> IndexEntry:
    """The entry of a row, as it was parsed."""
    name, sampling = _name(row.get("environment")), _name(row.get("sampling"))
    example_id = _example_id(row.get("example_id"))
    input_tokens, output_tokens = _tokens(row)
    group = row.get("group")
    return IndexEntry(
        group=json.dumps([name, example_id if group is None else str(group), group is None, sampling]),
        environment=name,
        error=_error(row.get("error")),
        stop_condition=_name(row.get("stop_condition")),
        candidate=_name(row.get("candidate")),
        sampling=sampling,
        truncated=bool(row.get("is_truncated")),
        turns=_turns(row),
        reward=_number(row.get("reward")),
        advantage=_number(row.get("advantage")),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        duration=_number(_field(row.get("timing"), "total")),
        example_id=example_id,
        place=_place(row.get("rollout")),
        question=question_of(row, QUESTION_LENGTH),
    )


def group_key(part: str, group: str) -> int:
    """A number for a group of a file, the same whenever it is computed."""
    text = f"{part}\n{group}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)  # as SQLite has them


def question_of(row: dict[str, Any], length: int) -> str:
    """The first words of the question, on one line: of the last message of the prompt that the model did not write."""
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        given = [message for message in prompt if isinstance(message, dict) and message.get("role") != "assistant"]
        users = [message for message in given if message.get("role") == "user"]
        prompt = readable_text((users or given)[-1].get("content")) if given else ""
    return one_line(prompt, length) if isinstance(prompt, str) else ""


def answer_of(row: Mapping[str, Any]) -> str:
    """What the model said last, on one line; "" where it said nothing."""
    completion = row.get("completion")
    said = [one for one in completion if isinstance(one, dict)] if isinstance(completion, list) else []
    texts = [readable_text(one.get("content")) for one in said if one.get("role") == "assistant"]
    text = completion if isinstance(completion, str) else texts[-1] if texts else ""
    return _whole(" ".join(text.split()))


def one_line(text: str, length: int) -> str:
    """The first words of a text, on one line."""
    return _whole(" ".join(text[: 2 * length].split())[:length])


def _whole(text: str) -> str:
    """Text that can be stored: half characters replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _name(value: Any) -> str | None:
    return _whole(value[:NAME_LENGTH]) or None if isinstance(value, str) else None


def _error(value: Any) -> str | None:
    if value is None:
        return None
    return _name(value.get("error") if isinstance(value, dict) else value) or "Error"


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float):
        return None
    try:
        return None if math.isnan(value) else float(value)
    except OverflowError:
        return None


def as_float(value: int | float) -> float:
    """A number of JSON, which may have more digits than a float can hold."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _example_id(value: Any) -> int | str | None:
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return value
    return _name(value if isinstance(value, str | None) else json.dumps(value))


def _place(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32 else None


def _turns(row: dict[str, Any]) -> int:
    turns = row.get("turns")
    if isinstance(turns, list):
        return len(turns)
    completion = row.get("completion")
    if not isinstance(completion, list):
        return int(isinstance(completion, str))
    return sum(_field(message, "role") == "assistant" for message in completion)


def _tokens(row: dict[str, Any]) -> tuple[float | None, float | None]:
    usage = row.get("token_usage")
    if isinstance(usage, dict):
        return _number(usage.get("input_tokens")), _number(usage.get("output_tokens"))
    turns = row.get("turns")
    known = [turn for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    if not known:
        return None, None
    starts = [start for turn in known if isinstance(start := turn.get("prompt_start"), int)]
    return (
        float(sum(starts) + sum(_length(turn.get("prompt_ids")) for turn in known)),
        float(sum(_length(turn.get("completion_ids")) for turn in known)),
    )


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


@dataclass(frozen=True, slots=True)
class RowToolCall:
    """One call of a tool by the model."""

    name: str
    arguments: str  # as the model wrote them, JSON or not
    id: str = ""

    @property
    def parsed(self) -> Any:
        """The arguments as values; the text itself where it is not JSON."""
        try:
            return parse_json(self.arguments)
        except ValueError:
            return self.arguments


def tool_calls(message: Mapping[str, Any]) -> Iterator[RowToolCall]:
    """The calls of a message, in order; what is no call is shown as a call without a name."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        yield _call(call)


def _call(value: Any) -> RowToolCall:
    if isinstance(value, str):
        try:
            parsed = parse_json(value)
        except ValueError:
            parsed = None
        if not isinstance(parsed, Mapping):
            return RowToolCall("", value)
        value = parsed
    if not isinstance(value, Mapping):
        return RowToolCall("", json.dumps(value))
    function = value.get("function")
    called = function if isinstance(function, Mapping) else value
    arguments = called.get("arguments")
    return RowToolCall(
        name=str(called.get("name") or ""),
        arguments=arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
        id=str(value.get("id") or ""),
    )
