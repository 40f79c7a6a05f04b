"""A row of data as a conversation to imitate: which messages, which tools, which answers carry loss. Pure.

    {"messages": [...], "tools": [...]}               every assistant message
    {"prompt": [...] or "...", "completion": ...}     the assistant messages of the completion; text is a user's and
                                                      the assistant's
An assistant message with `"weight": 0` carries none. `tools` are in OpenAI's form or plain, or JSON text of either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from whet.errors import DatasetError
from whet.messages import as_message
from whet.types import AssistantMessage, Messages, TextMessage, Tool, UserMessage

TOOL_KEYS = ("tools", "tool_defs")


@dataclass(frozen=True, slots=True)
class TrainingConversation:
    messages: Messages
    tools: list[Tool]
    trained: frozenset[int]  # indices of the messages that carry loss, all of them the assistant's

    @property
    def answers(self) -> list[int]:
        """Places of the assistant's messages."""
        return [place for place, message in enumerate(self.messages) if message["role"] == "assistant"]


def conversation_of(row: Mapping[str, Any], train_on: Literal["assistant", "last"]) -> TrainingConversation:
    """Raises `DatasetError`, without saying where the row came from."""
    messages, start = _messages(row)
    weights = [message.pop("weight", 1) if message["role"] == "assistant" else 0 for message in messages]
    for weight in weights:
        if weight not in (0, 1):
            raise DatasetError(f"the weight of an assistant message is 0 or 1, not {weight!r}")
    answers = [place for place, weight in enumerate(weights) if weight and place >= start]
    if not answers:
        where = "the completion" if start else "the conversation"
        raise DatasetError(f"{where} has no assistant message that carries loss")
    if answers[0] == 0:
        raise DatasetError("the conversation begins with the assistant; there is nothing to answer")
    return TrainingConversation(messages, _tools(row), frozenset(answers if train_on == "assistant" else answers[-1:]))


def _messages(row: Mapping[str, Any]) -> tuple[Messages, int]:
    """All messages, and the index of the first that may carry loss."""
    if row.get("messages") is not None:
        return _read(row["messages"], "messages"), 0
    if row.get("prompt") is None or row.get("completion") is None:
        found = ", ".join(map(str, row)) or "nothing"
        raise DatasetError(f"expected messages, or prompt and completion; the row has {found}")
    prompt, completion = row["prompt"], row["completion"]
    before = [UserMessage(prompt)] if isinstance(prompt, str) else _read(prompt, "prompt")
    after = [AssistantMessage(completion)] if isinstance(completion, str) else _read(completion, "completion")
    return [*before, *after], len(before)


def _read(value: Any, name: str) -> Messages:
    if isinstance(value, str):
        value = _json(value, name)
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise DatasetError(f"{name} should be a list of messages, not {type(value).__name__}")
    messages: Messages = []
    for place, item in enumerate(value):
        # A table has every column in every row: a field that is null is one that the message does not have.
        given = {key: field for key, field in item.items() if field is not None} if isinstance(item, Mapping) else item
        try:
            messages.append(as_message(given, f"{name}[{place}]"))
        except (TypeError, ValueError) as error:
            raise DatasetError(str(error)) from None
        if isinstance(messages[-1], TextMessage):
            raise DatasetError(f"{name}[{place}] is plain text; text is trained with [data] text = true")
    return messages


def _tools(row: Mapping[str, Any]) -> list[Tool]:
    given: Any = next((row[key] for key in TOOL_KEYS if row.get(key)), [])
    if isinstance(given, str):
        given = _json(given, "tools")
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise DatasetError(f"tools should be a list, not {type(given).__name__}")
    return [_tool(item, place) for place, item in enumerate(given)]


def _tool(item: Any, place: int) -> Tool:
    if isinstance(item, str):
        item = _json(item, f"tools[{place}]")
    if isinstance(item, Mapping) and isinstance(item.get("function"), Mapping):
        item = item["function"]
    if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
        raise DatasetError(f"tools[{place}] should be a tool with a name, a description and parameters")
    parameters = item.get("parameters")
    if isinstance(parameters, str):
        parameters = _json(parameters, f"tools[{place}].parameters")
    return Tool(item["name"], str(item.get("description") or ""), dict(parameters or {"type": "object"}))


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise DatasetError(f"{name} is text that is not JSON: {text[:60]!r}") from None
