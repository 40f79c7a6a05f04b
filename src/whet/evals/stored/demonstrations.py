"""Rollouts as conversations to imitate, one JSON object a line.

    {"prompt": [...], "completion": [...], "tools": [...], "example_id": 3, "reward": 1.0}

Messages and tools are in OpenAI's form; prompt and completion are text where the environment's are. `whet train sft`
reads such a file as it reads the evaluation, and so do trainers that take conversations as prompt and completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from whet.messages import as_tool_call
from whet.system.files import json_line
from whet.types import RolloutOutput


def write_demonstrations(path: Path, rows: Iterable[RolloutOutput], chosen: Sequence[int]) -> None:
    """The rollouts at the positions `chosen`, in their order. Holds one at a time."""
    wanted = set(chosen)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json_line(_demonstration(row)) for number, row in enumerate(rows) if number in wanted)


def _demonstration(row: RolloutOutput) -> dict[str, Any]:
    """A rollout as a row of `sft`."""
    said = {name: _openai_messages(row.get(name)) for name in ("prompt", "completion")}
    tools = [
        {"type": "function", "function": {key: tool.get(key) for key in ("name", "description", "parameters")}}
        for tool in row.get("tool_defs") or ()
    ]
    return {**said, **({"tools": tools} if tools else {}), "example_id": row["example_id"], "reward": row["reward"]}


def _openai_messages(messages: Any) -> Any:
    if not isinstance(messages, list):
        return messages
    return [
        message | {"tool_calls": [_openai_call(call) for call in message["tool_calls"]]}
        if isinstance(message, dict) and message.get("tool_calls")
        else message
        for message in messages
    ]


def _openai_call(call: Any) -> dict[str, Any]:
    read = as_tool_call(call)
    return {"id": read.id, "type": "function", "function": {"name": read.name, "arguments": read.arguments}}
