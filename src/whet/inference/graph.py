"""The messages of one rollout, each once: which earlier answer does a prompt continue?

    system ── user ── answer 1 ── tool ── answer 2          turn 2 continues turn 1
                          └────── user' ── answer 3         turn 3 was forked off after turn 1

Messages are compared by their content at the time of sampling, so one that is edited later, even in place, begins
a branch. A lookup takes one step a message and renders nothing. Nothing here reads or makes token ids.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from whet.types import AssistantMessage, Messages, ResponseTokens, Tool, TrajectoryStep

_NOT_CONTENT = frozenset({"finish_reason", "is_truncated", "tokens"})
"""What a client notes on an answer in addition to its content."""


@dataclass(slots=True)
class _Node:
    """A message after those before it. `tokens` are those of the turn where it is an answer that was sampled."""

    after: dict[Hashable, _Node] = field(default_factory=dict)
    tokens: ResponseTokens | None = None

    def next(self, message: Mapping[str, Any]) -> _Node | None:
        written = as_written(message)
        node = self.after.get(written)
        if node is None:
            node = self.after.get(as_meant(message))
            if node is not None:
                self.after[written] = node  # so that the next lookup need not read the arguments of calls
        return node

    def grow(self, message: Mapping[str, Any]) -> _Node:
        node = self.next(message)
        if node is None:
            node = self.after[as_written(message)] = self.after[as_meant(message)] = _Node()
        return node


class MessageGraph:
    """The conversations of one rollout. Other tools are another prompt, so each set of tools has a root of its own."""

    def __init__(self) -> None:
        self._roots: dict[str, _Node] = {}

    @classmethod
    def of(cls, trajectory: Sequence[TrajectoryStep], tools: Sequence[Tool] | None) -> Self:
        """The graph of turns that are already there, as when a rollout's state was copied or loaded."""
        graph = cls()
        for step in trajectory:
            tokens = step["response"]["message"].get("tokens")
            if tokens is not None:
                graph._add([*step["prompt"], *step["completion"]], tools, tokens)
        return graph

    def add(
        self, prompt: Messages, answer: AssistantMessage, tools: Sequence[Tool] | None, tokens: ResponseTokens
    ) -> None:
        """`answer` was sampled after `prompt`. Of two equal answers after equal prompts the later one counts."""
        self._add([*prompt, answer], tools, tokens)

    def _add(self, conversation: Messages, tools: Sequence[Tool] | None, tokens: ResponseTokens) -> None:
        node = self._roots.setdefault(_name(tools), _Node())
        for message in conversation:
            node = node.grow(message)
        node.tokens = tokens

    def latest_answer(self, prompt: Messages, tools: Sequence[Tool] | None) -> tuple[ResponseTokens, int] | None:
        """The last sampled answer that `prompt` continues, and how many of its messages that answer ends.

        None where `prompt` has nothing new after an answer of this rollout.
        """
        node, found = self._roots.get(_name(tools)), None
        for length, message in enumerate(prompt[:-1], start=1):
            node = None if node is None else node.next(message)
            if node is None:
                break
            if node.tokens is not None:
                found = node.tokens, length
        return found


def as_written(message: Mapping[str, Any]) -> Hashable:
    """The exact content of a message. Fields without a value count as absent."""
    return tuple([(key, _frozen(message[key])) for key in sorted(message) if _says(key, message[key])])


def as_meant(message: Mapping[str, Any]) -> Hashable:
    """The content of a message, independent of how its text is split and its calls' JSON is formatted."""
    meant = {key: value for key, value in message.items() if _says(key, value)}
    if meant.get("tool_calls"):
        meant["tool_calls"] = [{**call, "arguments": _laid_out(call["arguments"])} for call in meant["tool_calls"]]
    parts = meant.get("content")
    if isinstance(parts, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in parts):
        meant["content"] = "".join(part["text"] for part in parts)
    return "meant", as_written(meant)


def _says(key: str, value: Any) -> bool:
    return key not in _NOT_CONTENT and value is not None and value != "" and value != []


def _frozen(value: Any) -> Hashable:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return tuple([(key, _frozen(value[key])) for key in sorted(value) if value[key] is not None])
    if isinstance(value, list | tuple):
        return tuple([_frozen(item) for item in value])
    return type(value), repr(value)  # true is not 1, and 1 is not 1.0


def _laid_out(arguments: Any) -> Any:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return arguments


def _name(tools: Sequence[Tool] | None) -> str:
    return json.dumps(tools or [], sort_keys=True, default=str)
