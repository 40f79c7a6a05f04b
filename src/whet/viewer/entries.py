"""What the index keeps of one line: fixed-size columns, names, and a little text. Pure.

Rows are those of `results.jsonl` (`rollouts/results.py`) and of a run's rollouts (`rl/storage/rollout_log.py`,
`gepa/call_log.py`). Whatever is
missing or of another type than expected is empty: nothing in a line can stop the index.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from whet.messages import readable_text
from whet.viewer.lines import parse_row

NUMBERS: Mapping[str, str] = {
    "file": "I",
    "line": "Q",
    "offset": "Q",
    "size": "Q",
    "checksum": "I",
    "group": "Q",
    "place": "I",
    "environment": "I",
    "error": "I",
    "stop_condition": "I",
    "candidate": "I",
    "sampling": "I",
    "truncated": "B",
    "damaged": "B",
    "turns": "I",
    "reward": "d",
    "advantage": "d",
    "input_tokens": "d",
    "output_tokens": "d",
    "duration": "d",
    "example": "d",
}
"""Columns by name, with the type code of `array`. Where a number is not known, a `d` column holds NaN."""
NAMES = ("environment", "error", "stop_condition", "candidate", "sampling")
"""Columns that hold numbers of names, 0 for none."""
QUESTION_LENGTH = 160
NAME_LENGTH = 120
UNKNOWN = math.nan


class Entry(NamedTuple):
    """One line, as its content alone tells it."""

    environment: str = ""  # "" where the row names none: then it is that of the whole file
    error: str = ""
    stop_condition: str = ""
    candidate: str = ""
    sampling: str = ""  # of a run's held-out tasks: "greedy", "temperature 1"
    truncated: bool = False
    turns: int = 0
    reward: float = UNKNOWN
    advantage: float = UNKNOWN
    input_tokens: float = UNKNOWN
    output_tokens: float = UNKNOWN
    duration: float = UNKNOWN
    example: float = UNKNOWN
    example_id: int | str | None = None
    group: str = ""  # what the rollouts of a group have in common, inside their file
    place: int = -1  # which rollout of its group it says to be; -1 where it does not
    question: str = ""
    problem: str = ""  # why the line is no rollout


def read_entry(line: bytes) -> Entry:
    """The entry of a line."""
    try:
        row = parse_row(line)
    except ValueError as error:
        return Entry(problem=str(error))
    return entry_of(row)


def entry_of(row: dict[str, Any]) -> Entry:
    """The entry of a row, as it was parsed."""
    name, sampling = _name(row.get("environment")), _name(row.get("sampling"))
    example_id = _example_id(row.get("example_id"))
    input_tokens, output_tokens = _tokens(row)
    group = row.get("group")
    return Entry(
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
        example=_number(example_id),
        example_id=example_id,
        group=json.dumps([name, example_id if group is None else str(group), group is None, sampling]),
        place=_place(row.get("rollout")),
        question=question_of(row, QUESTION_LENGTH),
    )


def group_key(part: str, group: str) -> int:
    """A number for a group of a file, the same whenever it is computed."""
    text = f"{part}\n{group}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def question_of(row: dict[str, Any], length: int) -> str:
    """The first words of what was asked: of the last message of the prompt that the model did not write, on a line."""
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        asked = [message for message in prompt if isinstance(message, dict) and message.get("role") != "assistant"]
        users = [message for message in asked if message.get("role") == "user"]
        prompt = readable_text((users or asked)[-1].get("content")) if asked else ""
    return _words(prompt, length) if isinstance(prompt, str) else ""


def _words(text: str, length: int) -> str:
    return _whole(" ".join(text[: 2 * length].split())[:length])


def _whole(text: str) -> str:
    """Text that can be stored: half characters replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _name(value: Any) -> str:
    return _whole(value[:NAME_LENGTH]) if isinstance(value, str) else ""


def _error(value: Any) -> str:
    if value is None:
        return ""
    return _name(value.get("error") if isinstance(value, dict) else value) or "Error"


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _number(value: Any) -> float:
    if not isinstance(value, int | float):
        return UNKNOWN
    try:
        return float(value)
    except OverflowError:
        return UNKNOWN


def _example_id(value: Any) -> int | str | None:
    if isinstance(value, bool) or not isinstance(value, int | str | None):
        value = json.dumps(value)
    return _name(value) if isinstance(value, str) else value


def _place(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32 else -1


def _turns(row: dict[str, Any]) -> int:
    turns = row.get("turns")
    if isinstance(turns, list):
        return len(turns)
    counted = _number(_field(row.get("metrics"), "num_turns"))
    if 0 <= counted < 2**32:
        return int(counted)
    completion = row.get("completion")
    if not isinstance(completion, list):
        return int(isinstance(completion, str))
    return sum(_field(message, "role") == "assistant" for message in completion)


def _tokens(row: dict[str, Any]) -> tuple[float, float]:
    usage = row.get("token_usage")
    if isinstance(usage, dict):
        return _number(usage.get("input_tokens")), _number(usage.get("output_tokens"))
    turns = row.get("turns")
    known = [turn for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    if not known:
        return UNKNOWN, UNKNOWN
    starts = [start for turn in known if isinstance(start := turn.get("prompt_start"), int)]
    return (
        float(sum(starts) + sum(_length(turn.get("prompt_ids")) for turn in known)),
        float(sum(_length(turn.get("completion_ids")) for turn in known)),
    )


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0
