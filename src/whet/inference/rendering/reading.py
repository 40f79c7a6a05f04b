"""Sampled ids as a message: what the `renderers` package reads, held to two rules that are the same in every format.

* Content and reasoning are without the whitespace around them. Formats differ in this, some also by whether the answer
  was cut off; an answer that arrives token by token could then not be shown before its end.
* No text is lost: where the package forgets what came before a marker out of place, it stays, and
  the marker is text like any other. Calls that cannot be read stay in the content, as the model wrote them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from renderers import Renderer, ToolCallParseStatus

from whet.inference.rendering.written_tools import read_calls
from whet.types import AssistantMessage, ToolCall

_FORGETS = {"gemma4": "<|channel>", "inkling": "<|content_thinking|>", "llama-3": "<|end_header_id|>"}
"""The marker at which a format's parser drops the text before it: an open thought, a header."""
_READABLE = (ToolCallParseStatus.OK, ToolCallParseStatus.UNKNOWN_TOOL)


@dataclass(frozen=True, slots=True)
class Reading:
    """A message, and how many calls were tried in it, readable or not."""

    message: AssistantMessage
    calls: int


class AnswerFormat:
    """One format's way to read answers. `decode` gives the text of ids, `stops` are the ids that end an answer.

    With `calls_in_text` calls are read from the content (`written_tools.py`): the format itself has none.
    """

    def __init__(
        self,
        package: Renderer,
        name: str,
        decode: Callable[[list[int]], str],
        stops: Sequence[int],
        vocabulary: Any,
        *,
        calls_in_text: bool = False,
    ) -> None:
        self.package, self.name, self.stops, self.calls_in_text = package, name, frozenset(stops), calls_in_text
        self._decode = decode
        self._forgets = vocabulary.get(_FORGETS.get(name))

    def read(self, ids: list[int], *, prompt_ids: list[int] | None, tools: Any, call_ids: str = "call") -> Reading:
        """The answer `ids`, sampled after `prompt_ids`. Calls are named `<call_ids>_0`, `<call_ids>_1`, ..."""
        read = self._read(ids, prompt_ids, tools, call_ids)
        if self._forgets is None or self._forgets not in ids:
            return read
        end = next((index for index, token in enumerate(ids) if token in self.stops), len(ids))
        for index in range(1, end):
            if ids[index] == self._forgets:
                before = self._read(ids[:index], prompt_ids, tools, call_ids)
                if before.message.content or before.calls:
                    return read if _goes_on(before, read) else self._with_text(before, ids[index:end])
        return read

    def _with_text(self, read: Reading, ids: list[int]) -> Reading:
        message = read.message
        content = f"{message.content}{self._decode(ids)}".strip()
        stripped = AssistantMessage(content, tool_calls=message.tool_calls, reasoning_content=message.reasoning_content)
        return Reading(stripped, read.calls)

    def _read(self, ids: list[int], prompt_ids: list[int] | None, tools: Any, call_ids: str) -> Reading:
        parsed = self.package.parse_response(ids, tools=tools, prompt_ids=prompt_ids)
        calls, content = [], parsed.content.strip()
        for number, call in enumerate(parsed.tool_calls):
            if call.status in _READABLE and isinstance(call.name, str):
                calls.append(_call(call.id or f"{call_ids}_{number}", call.name, call.arguments))
            elif call.token_span is not None:
                content += self._decode(ids[slice(*call.token_span)])
            else:
                content += call.raw
        tried = len(parsed.tool_calls)
        written = self._json_calls(ids, [call.token_span for call in parsed.tool_calls if call.token_span])
        if written:  # read as text, in which a marker inside a call ends none, and text after it is kept
            content, calls, tried = f"{parsed.content}\n{written}", [], 0
        if self.calls_in_text or written:
            content, read, begun = read_calls(content)
            calls += [_call(f"{call_ids}_{tried + number}", *one) for number, one in enumerate(read)]
            tried += begun
        reasoning = parsed.reasoning_content
        stripped = AssistantMessage(
            content.strip(),
            tool_calls=calls or None,
            reasoning_content=None if reasoning is None else reasoning.strip(),
        )
        return Reading(stripped, tried)

    def _json_calls(self, ids: list[int], spans: list[tuple[int, int]]) -> str:
        """The text from the first call on, where calls are JSON between `<tool_call>` and `</tool_call>`."""
        if not spans:
            return ""
        end = next((index for index, token in enumerate(ids) if token in self.stops), len(ids))
        text = self._decode(ids[min(spans)[0] : end])
        return text if re.match(r"<tool_call>\s*[{\"]", text) else ""


def _call(id: str, name: str, arguments: Any) -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return ToolCall(id=id, name=name, arguments=text)


def _goes_on(before: Reading, after: Reading) -> bool:
    """Whether nothing of `before` is gone."""
    calls = before.message.tool_calls or []
    return (
        str(after.message.content).startswith(str(before.message.content))
        and (after.message.tool_calls or [])[: len(calls)] == calls
    )
