"""Sampled ids as a message: what the `renderers` package reads, held to two rules that are the same in every format.

* Content and reasoning are without the whitespace around them. Formats differ in this, some also by whether the answer
  was cut off; an answer that arrives token by token could then not be shown before its end.
* No text is lost: where the package forgets what came before a marker out of place, it stays, and
  the marker is text like any other. Calls that cannot be read stay in the content, as the model wrote them.

Tools under a chat template that has no place for them: whet writes them, as text, in the form of Hermes and Qwen.

Many templates ignore `tools`: they render the same text with tools and without, and a model never reads of them. There

* the tools are in the system message (in the first user message where the template has no system message), one JSON
  signature a line between `<tools>` and `</tools>`;
* a call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` in the text of an assistant message;
* results are a user message, each between `<tool_response>` and `</tool_response>`.

The markers are plain text, so calls are read from the text of an answer, not from its ids.

A format that `renderers` knows may have calls and results of its own and still ignore tools (DeepSeek V3): of such a
one only the tools are written as text.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from renderers import Renderer, ToolCallParseStatus

from whet.messages import content_text
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

    With `calls_in_text` calls are read from the content: the format itself has none.
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


CALL_MARKERS = ("<tool_call>", "</tool_call>")
_CALL_BEGINS, _CALL_ENDS = re.compile(r"<tool_call>\s*"), re.compile(r"\s*</tool_call>")
_DECODER = json.JSONDecoder()
PROBE_TOOL: Any = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
}
_SYSTEM: dict[str, Any] = {"role": "system", "content": "whet-system-marker"}
_USER: dict[str, Any] = {"role": "user", "content": "u"}
_INTRODUCTION = "You can use tools. The signature of each is a line of JSON between <tools> and </tools>:"
_HOW_TO_CALL = """To call a tool, write its name and its arguments as JSON between <tool_call> and </tool_call>:
<tool_call>
{"name": "name of the tool", "arguments": {"name of an argument": "its value"}}
</tool_call>"""
_REFUSALS = (TemplateError, ValueError, TypeError, LookupError, AttributeError)
"""What a format raises for a conversation that it does not take."""


def ignores_tools(package: Renderer) -> bool:
    """Whether a chat format renders the same ids with tools and without."""
    compared = False
    for messages in ([_SYSTEM, _USER], [_USER]):
        try:
            plain = list(package.render_ids(messages, add_generation_prompt=True))
            with_tool = list(package.render_ids(messages, tools=[PROBE_TOOL], add_generation_prompt=True))
        except _REFUSALS:
            continue
        if plain != with_tool:
            return False
        compared = True
    return compared


def takes_system(package: Renderer, tokenizer: Any) -> bool:
    """Whether the text of a system message is in what the format renders."""
    try:
        ids = list(package.render_ids([_SYSTEM, _USER], add_generation_prompt=True))
    except _REFUSALS:
        return False
    return str(_SYSTEM["content"]) in str(tokenizer.decode(ids, skip_special_tokens=False))


def with_tools(
    messages: Sequence[Mapping[str, Any]], tools: Any, *, in_system: bool, calls_as_text: bool
) -> list[dict[str, Any]]:
    """A conversation with its tools as text. Without `calls_as_text` the format itself writes calls and results."""
    written = as_text(messages) if calls_as_text else [dict(message) for message in messages]
    if not tools:
        return written
    lines = (json.dumps(tool, ensure_ascii=False) for tool in tools)
    how = ["", _HOW_TO_CALL] if calls_as_text else []
    text = "\n".join([_INTRODUCTION, "<tools>", *lines, "</tools>", *how])
    role = "system" if in_system else "user"
    number = 0 if in_system else next((i for i, message in enumerate(written) if message["role"] == role), 0)
    if number >= len(written) or written[number]["role"] != role:
        return [{"role": role, "content": text}, *written]
    said = content_text(written[number]["content"])
    parts = [said, text] if in_system else [text, said]
    written[number] = {**written[number], "content": "\n\n".join(part for part in parts if part)}
    return written


def as_text(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Calls as text of the messages that made them; results, those in a row together, as a user message."""
    written: list[dict[str, Any]] = []
    earlier = ""
    for message in messages:
        plain = {key: value for key, value in message.items() if key != "tool_calls"}
        if calls := message.get("tool_calls"):
            said = content_text(message.get("content")).strip()
            plain["content"] = "\n".join([*([said] if said else []), *map(_call_text, calls)])
        if message["role"] == "tool":
            result = f"<tool_response>\n{content_text(message.get('content'))}\n</tool_response>"
            if earlier == "tool":
                written[-1]["content"] += f"\n{result}"
            else:
                written.append({"role": "user", "content": result})
        else:
            written.append(plain)
        earlier = message["role"]
    return written


def _call_text(call: Mapping[str, Any]) -> str:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    with contextlib.suppress(TypeError, ValueError, RecursionError):  # what is no JSON is written as a string
        arguments = json.loads(arguments)
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def read_calls(text: str) -> tuple[str, list[tuple[str, Any]], int]:
    """Text without the calls that can be read, these as (name, arguments), and how many calls were begun.

    A call ends where its JSON does, so a marker inside one of its texts ends none.
    """
    calls: list[tuple[str, Any]] = []
    kept: list[str] = []
    begun = at = 0
    while (start := text.find(CALL_MARKERS[0], at)) >= 0:
        begun += 1
        kept.append(text[at:start])
        match = _CALL_BEGINS.match(text, start)
        at = match.end() if match else start
        try:
            call, at = _DECODER.raw_decode(text, at)
            call = json.loads(call) if isinstance(call, str) else call  # encoded twice
        except (ValueError, RecursionError):
            call = None
        ends = _CALL_ENDS.match(text, at)
        if ends and isinstance(call, dict) and isinstance(call.get("name"), str) and call["name"]:
            calls.append((call["name"], call.get("arguments")))
            at = ends.end()
        else:
            at = start + len(CALL_MARKERS[0])
            kept.append(CALL_MARKERS[0])
    return "".join([*kept, text[at:]]), calls, begun
