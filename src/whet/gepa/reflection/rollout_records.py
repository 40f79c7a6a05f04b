"""Records of rollouts for the reflection model, made from result rows. Pure.

A record holds JSON values only, and nothing that changes when the same row is read from disk instead of taken from
memory: no times, no tokens. So a resumed search makes exactly the same requests to the reflection model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whet.envs.config.texts import JUDGE, TOOL
from whet.gepa.types import Scored
from whet.messages import as_tool_call, readable_text
from whet.system.files import json_line

JUDGED = "judge_response"
"""The state column in which a judge's rubric keeps its requests and replies."""

NORMAL_ENDS = ("has_error", "has_final_env_response", "no_tools_called")
"""Stop conditions that say nothing of how well a rollout went."""


def make_records(scored: Sequence[Scored], component: str, state_columns: Sequence[str]) -> list[dict[str, Any]]:
    """One record for each rollout that a text for `component` had a part in.

    environment     label of the `[[env]]` it ran in
    prompt          what the model was shown: [{"role": "user", "text": "..."}]
    completion      what followed, tool calls and results included, in the same form
    expected        the right answer, where the dataset row has one
    reward, metrics, error, ended, cut_off
    state           the configured state columns
    tool            for a tool's description: the tool's parameters
    judge           for a judge's prompt: what it said, where the row has it
    """
    return [_plain(_record(one, component, state_columns)) for one in scored if _has_part(component, one)]


def _has_part(component: str, one: Scored) -> bool:
    """Whether a rollout was shown the component: of several environments, each has its own texts and tools."""
    label = component.partition("@")[2]
    if label and label != _environment(one):
        return False
    return not component.startswith(TOOL) or _tool(one.row.get("tool_defs") or (), component) is not None


def _environment(one: Scored) -> str:
    """The label of the `[[env]]` that a rollout ran in."""
    return one.call.example.split("/")[1]


def _record(one: Scored, component: str, state_columns: Sequence[str]) -> dict[str, Any]:
    row = one.row
    record: dict[str, Any] = {
        "environment": _environment(one),
        "prompt": list(_messages(row.get("prompt"))),
        "completion": list(_messages(row.get("completion"))),
        "expected": row.get("answer"),
        "reward": one.reward,
        "metrics": dict(row.get("metrics") or {}),
        "error": one.error,
        "ended": _ended(row),
        "cut_off": bool(row.get("is_truncated")),
        "state": {column: row[column] for column in state_columns if row.get(column) is not None},
    }
    if component.startswith(TOOL):
        record["tool"] = _tool(row.get("tool_defs") or (), component)
    if component.startswith(JUDGE):
        record["judge"] = _verdicts(row.get(JUDGED))
    return record


def _verdicts(judged: Any) -> Any:
    """What a judge said; with several requests by request. A single one follows from the record and is left out."""
    return next(iter(judged.values())) if isinstance(judged, Mapping) and len(judged) == 1 else judged


def _ended(row: Mapping[str, Any]) -> str | None:
    """The stop condition, where it says how the rollout went: a single turn always ends with its only turn."""
    condition = row.get("stop_condition")
    single = condition == "max_turns_reached" and len(row.get("completion") or ()) <= 1
    return None if condition in NORMAL_ENDS or single else condition


def _messages(messages: Any) -> Iterator[dict[str, str]]:
    if isinstance(messages, str):
        yield {"role": "text", "text": messages}
        return
    for message in messages or ():
        role, text = str(message.get("role", "text")), readable_text(message.get("content"))
        if isinstance(thought := message.get("reasoning_content"), str) and thought:
            yield {"role": f"{role}, thinking", "text": thought}
        calls = message.get("tool_calls") or ()
        if text or not calls:
            yield {"role": "tool result" if role == "tool" else role, "text": text}
        for call in map(as_tool_call, calls):
            yield {"role": f"{role}, tool call", "text": f"{call['name']}({call['arguments']})"}


def _tool(tool_defs: Sequence[Mapping[str, Any]], component: str) -> Any:
    """The definition of the tool that a component describes, without the description."""
    name = component.removeprefix(TOOL).partition("@")[0]
    for tool in tool_defs:
        if tool.get("name") == name:
            return {key: value for key, value in tool.items() if key != "description"}
    return None


def _plain(record: Any) -> dict[str, Any]:
    """As it would be read from a file."""
    plain: dict[str, Any] = json.loads(json_line(record))
    return plain
