"""An answer in deltas, passed on while the model still writes. Together they are the finished message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from whet.errors import ModelError
from whet.types import AssistantMessage, ToolCall


@dataclass(frozen=True, slots=True)
class Delta:
    """What has been added: text in the order reasoning, content, and whole tool calls after it."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    prompt_tokens: int | None = None  # on the first delta, where it is known

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.tool_calls)


OnDelta = Callable[[Delta], None]
"""Receives the deltas in order. It returns at once; what it raises ends the turn."""


@dataclass(slots=True)
class StreamedAnswer:
    """What has been streamed of an answer so far."""

    reasoning: str = ""
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        self.reasoning += delta.reasoning
        self.content += delta.content
        self.tool_calls += delta.tool_calls

    def rest(self, message: AssistantMessage) -> Delta:
        """The part of the finished `message` that is not streamed yet.

        Raises `ModelError` where something that was streamed is not in it.
        """
        reasoning, content = str(message.get("reasoning_content") or ""), str(message.get("content") or "")
        calls, streamed = list(message.get("tool_calls") or ()), len(self.tool_calls)
        kept = reasoning.startswith(self.reasoning) and content.startswith(self.content)
        if not kept or calls[:streamed] != self.tool_calls:
            raise ModelError("the answer turned out other than it was streamed; ask for it without streaming")
        return Delta(reasoning[len(self.reasoning) :], content[len(self.content) :], tuple(calls[streamed:]))
