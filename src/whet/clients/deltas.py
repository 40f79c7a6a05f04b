"""An answer in pieces: what a client tells while the model still writes. The pieces add up to the finished message."""

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
    prompt_tokens: int | None = None  # on the first piece, where it is known

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.tool_calls)


OnDelta = Callable[[Delta], None]
"""Told of the pieces in order. It returns at once; what it raises ends the turn."""


@dataclass(slots=True)
class Told:
    """What has been told of an answer so far."""

    reasoning: str = ""
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        self.reasoning += delta.reasoning
        self.content += delta.content
        self.tool_calls += delta.tool_calls

    def rest(self, message: AssistantMessage) -> Delta:
        """What of the finished `message` has not been told. Raises `ModelError` where something told is not in it."""
        reasoning, content = str(message.get("reasoning_content") or ""), str(message.get("content") or "")
        calls, told = list(message.get("tool_calls") or ()), len(self.tool_calls)
        kept = reasoning.startswith(self.reasoning) and content.startswith(self.content)
        if not kept or calls[:told] != self.tool_calls:
            raise ModelError("the answer turned out other than it was streamed; ask for it without streaming")
        return Delta(reasoning[len(self.reasoning) :], content[len(self.content) :], tuple(calls[told:]))
