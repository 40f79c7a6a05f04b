"""`/v1/messages`, as Anthropic's API reference describes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from whet.clients.client import Delta
from whet.gateway.wire import (
    INT64,
    MOST_MESSAGES,
    MOST_TOOLS,
    AnswerId,
    Body,
    RequestError,
    TurnRequest,
    content_of,
    event,
    given,
    read_body,
    read_messages,
    string_in,
    tool_of,
)
from whet.inference.protocol import MOST_STOP_CHARACTERS, MOST_STOPS
from whet.types import Response, Tool, ToolCall

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


class AnthropicTool(Body):
    type: str | None = None
    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(Body):
    type: str


class MessageParam(Body):
    role: str
    content: str | list[dict[str, Any]]


class MessagesBody(Body):
    """The fields of Anthropic's messages that are read."""

    model: str
    messages: list[MessageParam] = Field(min_length=1, max_length=MOST_MESSAGES)
    max_tokens: int = Field(ge=1, le=INT64["le"])
    system: str | list[dict[str, Any]] | None = None
    tools: list[AnthropicTool] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: ToolChoice | None = None
    stream: bool | None = None
    stop_sequences: list[Annotated[str, Field(max_length=MOST_STOP_CHARACTERS)]] | None = Field(
        None, max_length=MOST_STOPS
    )
    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0, le=INT64["le"])


def read_request(body: Any) -> TurnRequest:
    """The turn of a body in JSON. Raises `RequestError` for what is malformed or cannot be done here."""
    request = read_body(MessagesBody, body)
    native = [] if not request.system else [{"role": "system", "content": _text(request.system, "system")}]
    for index, message in enumerate(request.messages):
        native += _native(message, f"messages.{index}")
    return TurnRequest(
        model=request.model,
        messages=read_messages(native, "messages"),
        tools=_tools(request),
        sampling_args=given(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            stop=request.stop_sequences or None,
        ),
        stream=bool(request.stream),
    )


def write_answer(request: TurnRequest, responses: Sequence[Response]) -> dict[str, Any]:
    """A `message` object of the one response."""
    (response,) = responses  # the interface has no choices
    return {
        **_head(request, response.id),
        "content": _blocks(response),
        "stop_reason": STOP_REASONS[response.message.finish_reason or "stop"],
        "stop_sequence": None,
        "usage": _usage(response),
    }


def write_stream(request: TurnRequest, answer: AnswerId) -> _MessageEvents:
    """The writer of the interface's typed events."""
    return _MessageEvents(request, answer)


class _MessageEvents:
    """A message block by block, in the order in which the blocks begin."""

    def __init__(self, request: TurnRequest, answer: AnswerId) -> None:
        self._head = _head(request, answer.id)
        self._kind: str | None = None  # of the block that is open
        self._index = -1

    def begin(self, prompt_tokens: int | None) -> str:
        usage = {"input_tokens": prompt_tokens or 0, "output_tokens": 0}
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return _event("message_start", message={**self._head, **empty})

    def add(self, delta: Delta, choice: int = 0) -> str:
        said = ""
        if delta.reasoning:
            said += self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            said += self._delta({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.content:
            said += self._open("text", {"type": "text", "text": ""})
            said += self._delta({"type": "text_delta", "text": delta.content})
        for call in delta.tool_calls:
            said += self._close()
            said += self._open("tool_use", {"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
            written = json.dumps(_input(call.arguments), ensure_ascii=False)
            said += self._delta({"type": "input_json_delta", "partial_json": written})
        return said

    def finish(self, responses: Sequence[Response]) -> str:
        (response,) = responses
        reason = STOP_REASONS[response.message.finish_reason or "stop"]
        delta = {"stop_reason": reason, "stop_sequence": None}
        return self._close() + _event("message_delta", delta=delta, usage=_usage(response)) + _event("message_stop")

    def fail(self, error: RequestError) -> str:
        return event(write_error(error), "error")

    def _open(self, kind: str, empty: dict[str, Any]) -> str:
        if kind == self._kind:
            return ""
        closed = self._close()
        self._kind, self._index = kind, self._index + 1
        return closed + _event("content_block_start", index=self._index, content_block=empty)

    def _delta(self, delta: dict[str, Any]) -> str:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> str:
        if self._kind is None:
            return ""
        # A thought ends with its signature, which is not checked here.
        signed = self._delta({"type": "signature_delta", "signature": ""}) if self._kind == "thinking" else ""
        self._kind = None
        return signed + _event("content_block_stop", index=self._index)


def write_error(error: RequestError) -> dict[str, Any]:
    """An `error` object with the interface's type for the status."""
    kind = ERROR_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def _native(message: MessageParam, where: str) -> list[dict[str, Any]]:
    """A message of the interface as ours: tool results are messages of their own and come first."""
    if message.role not in ("user", "assistant", "system"):
        said = f"{where}.role should be 'user', 'assistant' or 'system', not {message.role!r}"
        raise RequestError(said, param=f"{where}.role")
    if message.role == "system" or isinstance(message.content, str):
        return [{"role": message.role, "content": _text(message.content, f"{where}.content")}]
    parts: list[dict[str, Any]] = []
    calls: list[ToolCall] = []
    thinking: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for index, block in enumerate(message.content):
        path, kind = f"{where}.content.{index}", block.get("type")
        if kind == "text":
            parts.append({"type": "text", "text": string_in(block, "text", path)})
        elif kind == "image" and message.role == "user":
            parts.append(_image(block, path))
        elif kind == "tool_use" and message.role == "assistant":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            calls.append(ToolCall(string_in(block, "id", path), string_in(block, "name", path), arguments))
        elif kind in ("thinking", "redacted_thinking") and message.role == "assistant":
            thinking.append(block)
        elif kind == "tool_result" and message.role == "user":
            content = _text(block.get("content") or "", f"{path}.content")
            results.append({"role": "tool", "tool_call_id": string_in(block, "tool_use_id", path), "content": content})
        else:
            raise RequestError(f"{path}: a {message.role} message cannot hold a block of type {kind!r}", param=path)
    if message.role == "user":
        return [*results, {"role": "user", "content": content_of(parts)}] if parts else results
    reasoning = "".join(str(block.get("thinking") or "") for block in thinking)
    return [
        {
            "role": "assistant",
            "content": content_of(parts),
            **({"tool_calls": calls} if calls else {}),
            **({"reasoning_content": reasoning} if reasoning else {}),
        }
    ]


def _text(content: str | list[Any], where: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for index, block in enumerate(content if isinstance(content, list) else [content]):
        path = f"{where}.{index}"
        if not isinstance(block, dict) or block.get("type") != "text":
            raise RequestError(f"{path}: only text is possible here", param=path)
        texts.append(string_in(block, "text", path))
    return "\n".join(texts)


def _image(block: dict[str, Any], where: str) -> dict[str, Any]:
    source = block.get("source")
    if isinstance(source, dict) and source.get("type") == "base64":
        url = f"data:{string_in(source, 'media_type', where)};base64,{string_in(source, 'data', where)}"
    elif isinstance(source, dict) and source.get("type") == "url":
        url = string_in(source, "url", where)
    else:
        raise RequestError(f"{where}.source should be of type 'base64' or 'url'", param=f"{where}.source")
    return {"type": "image_url", "image_url": {"url": url}}


def _tools(request: MessagesBody) -> list[Tool] | None:
    choice = request.tool_choice.type if request.tool_choice is not None else "auto"
    if choice == "none":
        return None
    if choice != "auto":
        raise RequestError("tool_choice: only types 'auto' and 'none' are possible here", param="tool_choice")
    made = []
    for index, tool in enumerate(request.tools or ()):
        if tool.type not in (None, "custom"):
            raise RequestError(f"tools.{index}: tools that the server runs are not possible here", param="tools")
        made.append(tool_of(tool.name, tool.description, tool.input_schema))
    return made or None


def _head(request: TurnRequest, answer_id: str) -> dict[str, Any]:
    return {"id": f"msg_{answer_id}", "type": "message", "role": "assistant", "model": request.model}


def _usage(response: Response) -> dict[str, int]:
    usage = response.usage
    return {
        "input_tokens": usage.prompt_tokens if usage else 0,
        "output_tokens": usage.completion_tokens if usage else 0,
    }


def _blocks(response: Response) -> list[dict[str, Any]]:
    message = response.message
    blocks: list[dict[str, Any]] = []
    if message.reasoning_content:
        # The interface signs what was thought; the signature of a thought that comes back is not checked here.
        blocks.append({"type": "thinking", "thinking": message.reasoning_content, "signature": ""})
    if message.content:
        blocks.append({"type": "text", "text": message.content})
    for call in message.tool_calls or ():
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)})
    return blocks


def _input(arguments: str) -> Any:
    """The interface wants an object: other JSON that the model wrote is put inside one, unchanged."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {"arguments": arguments}
    return value if isinstance(value, dict) else {"arguments": arguments}


def _event(name: str, **fields: Any) -> str:
    return event({"type": name, **fields}, name)
