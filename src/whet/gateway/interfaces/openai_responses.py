"""`/v1/responses`, as OpenAI's API reference has it, without its store: a request brings the conversation whole.

A streamed answer has its items in the order in which they begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from whet.clients.client import Delta
from whet.gateway.interfaces.openai_common import FunctionSpec, chosen_tools, kind_of
from whet.gateway.interfaces.openai_common import write_error as write_error
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
)
from whet.messages import content_text
from whet.types import Messages, Response, ToolCall


class ResponsesTool(FunctionSpec):
    type: str


class ResponsesBody(Body):
    """The fields of OpenAI's responses that are read."""

    model: str
    input: str | Annotated[list[dict[str, Any]], Field(max_length=MOST_MESSAGES)]
    instructions: str | None = None
    tools: list[ResponsesTool] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: Any = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    text: dict[str, Any] | None = None
    stream: bool | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=INT64["le"])
    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0, le=1)


def read_request(body: Any) -> TurnRequest:
    """The turn of a body in JSON. Raises `RequestError` for what is malformed or cannot be done here."""
    request = read_body(ResponsesBody, body)
    for name in ("previous_response_id", "conversation", "background"):
        if getattr(request, name):
            raise RequestError(f"{name}: nothing is stored here; send the whole conversation as input", param=name)
    if ((request.text or {}).get("format") or {"type": "text"}).get("type") != "text":
        raise RequestError("text.format: only {'type': 'text'} is possible here", param="text.format")
    native: list[dict[str, Any]] = []
    if request.instructions:
        native.append({"role": "system", "content": request.instructions})
    if isinstance(request.input, str):
        native.append({"role": "user", "content": request.input})
    else:
        native += read_items(request.input)
    for index, tool in enumerate(request.tools or ()):
        if tool.type == "function" and not tool.name:
            raise RequestError(f"tools.{index}.name should be a string", param=f"tools.{index}.name")
    return TurnRequest(
        model=request.model,
        messages=read_messages(native, "input"),
        tools=chosen_tools([(tool.type, tool) for tool in request.tools or ()], request.tool_choice),
        sampling_args=given(max_tokens=request.max_output_tokens, temperature=request.temperature, top_p=request.top_p),
        stream=bool(request.stream),
    )


def read_items(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items as messages. What the model reasoned, said and called in one turn are one message.

    Raises `RequestError` for an item that is malformed or of a kind that no message holds.
    """
    native: list[dict[str, Any]] = []

    def assistant() -> dict[str, Any]:
        if not native or native[-1]["role"] != "assistant":
            native.append({"role": "assistant", "content": ""})
        return native[-1]

    for index, item in enumerate(items):
        where, kind = f"input.{index}", item.get("type") or ("message" if "role" in item else None)
        if kind == "message":
            role = item.get("role")
            if role not in ("user", "assistant", "system", "developer"):
                raise RequestError(f"{where}.role: {role!r} is no role", param=f"{where}.role")
            content = _content(item.get("content"), f"{where}.content")
            if role == "assistant":
                assistant()["content"] = f"{assistant()['content']}{content}"
            else:
                native.append({"role": role, "content": content})
        elif kind == "function_call":
            call = ToolCall(*(string_in(item, key, where) for key in ("call_id", "name", "arguments")))
            assistant().setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            output = _content(item.get("output"), f"{where}.output")
            native.append({"role": "tool", "tool_call_id": string_in(item, "call_id", where), "content": output})
        elif kind == "reasoning":
            text = "".join(str(part.get("text") or "") for part in item.get("summary") or [] if isinstance(part, dict))
            native.append({"role": "assistant", "content": "", "reasoning_content": text})
        else:
            raise RequestError(f"{where}: an item of type {kind!r} is not possible here", param=where)
    return native


def _content(content: Any, where: str) -> Any:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} should be a string or an array", param=where)
    parts: list[dict[str, Any]] = []
    for index, part in enumerate(content):
        path, kind = f"{where}.{index}", part.get("type") if isinstance(part, dict) else None
        if kind in ("input_text", "output_text", "text"):
            parts.append({"type": "text", "text": string_in(part, "text", path)})
        elif kind == "refusal":
            parts.append({"type": "text", "text": string_in(part, "refusal", path)})
        elif kind == "input_image":
            parts.append({"type": "image_url", "image_url": {"url": string_in(part, "image_url", path)}})
        else:
            raise RequestError(f"{path}: a part of type {kind!r} is not possible here", param=path)
    return content_of(parts)


def write_answer(request: TurnRequest, responses: Sequence[Response]) -> dict[str, Any]:
    """A `response` object of the one response."""
    (response,) = responses  # the interface has no choices
    message, name = response.message, response.id
    status = "incomplete" if message.is_truncated else "completed"
    items = [_reasoning(f"rs_{name}", message.reasoning_content)] if message.reasoning_content else []
    if message.content or not message.tool_calls:
        items.append(_message(f"msg_{name}", message.content or "", status))
    items += [_call(f"fc_{name}_{n}", call, status) for n, call in enumerate(message.tool_calls or ())]
    return _finished(_head(request, AnswerId(name, response.created)), response, items)


def write_items(messages: Messages, name: str) -> list[dict[str, Any]]:
    """A conversation's answers, their calls and what tools returned, as items of a response; `name` is in their ids."""
    items: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        suffix, calls = f"{name}_{number}", message.get("tool_calls") or ()
        if message["role"] == "tool":
            output = {"call_id": message["tool_call_id"], "output": content_text(message["content"])}
            items.append({"type": "function_call_output", **output})
        elif message["role"] == "assistant":
            if message.get("reasoning_content"):
                items.append(_reasoning(f"rs_{suffix}", message["reasoning_content"]))
            text = content_text(message["content"])
            if text or not calls:
                items.append(_message(f"msg_{suffix}", text, "completed"))
            items += [_call(f"fc_{suffix}_{n}", call, "completed") for n, call in enumerate(calls)]
    return items


def write_stream(request: TurnRequest, answer: AnswerId) -> _ResponseEvents:
    """The writer of the interface's typed events."""
    return _ResponseEvents(request, answer)


class _ResponseEvents:
    """A response item by item. Reasoning and text grow while their item is open; calls come whole."""

    def __init__(self, request: TurnRequest, answer: AnswerId) -> None:
        self._head, self._name = _head(request, answer), answer.id
        self._number = 0  # of the next event
        self._items: list[dict[str, Any]] = []  # that are done
        self._kind: str | None = None  # of the item that is open
        self._id = self._text = ""

    def begin(self, prompt_tokens: int | None) -> str:
        begun = self._response("in_progress")
        return self._send("response.created", response=begun) + self._send("response.in_progress", response=begun)

    def add(self, delta: Delta, choice: int = 0) -> str:
        said = ""
        if delta.reasoning:
            said += self._open("reasoning")
            said += self._send("response.reasoning_summary_text.delta", **self._place, delta=delta.reasoning)
            self._text += delta.reasoning
        if delta.content:
            said += self._open("message")
            said += self._send("response.output_text.delta", **self._place, delta=delta.content, logprobs=[])
            self._text += delta.content
        for call in delta.tool_calls:
            said += self._close("completed") + self._whole_call(call)
        return said

    def finish(self, responses: Sequence[Response]) -> str:
        (response,) = responses
        said = ""
        status = "incomplete" if response.message.is_truncated else "completed"
        if self._kind is None and not any(item["type"] in ("message", "function_call") for item in self._items):
            said += self._open("message")
        said += self._close(status)
        return said + self._send(f"response.{status}", response=_finished(self._head, response, self._items))

    def fail(self, error: RequestError) -> str:
        said = self._send("error", code=error.code or kind_of(error), message=error.message, param=error.param)
        wrong = {"code": "server_error" if error.status >= 500 else "invalid_prompt", "message": error.message}
        return said + self._send("response.failed", response={**self._response("failed"), "error": wrong})

    def _open(self, kind: str) -> str:
        if kind == self._kind:
            return ""
        said = self._close("completed")
        before = sum(item["type"] == kind for item in self._items)
        self._kind, self._text = kind, ""
        self._id = f"{'rs' if kind == 'reasoning' else 'msg'}_{self._name}{f'_{before}' if before else ''}"
        if kind == "reasoning":
            said += self._added({**_reasoning(self._id, ""), "summary": []})
            empty = {"type": "summary_text", "text": ""}
            return said + self._send("response.reasoning_summary_part.added", **self._place, part=empty)
        said += self._added({**_message(self._id, "", "in_progress"), "content": []})
        return said + self._send("response.content_part.added", **self._place, part=_part(""))

    def _close(self, status: str) -> str:
        if self._kind is None:
            return ""
        if self._kind == "reasoning":
            item = _reasoning(self._id, self._text)
            said = self._send("response.reasoning_summary_text.done", **self._place, text=self._text)
            said += self._send("response.reasoning_summary_part.done", **self._place, part=item["summary"][0])
        else:
            item = _message(self._id, self._text, status)
            said = self._send("response.output_text.done", **self._place, text=self._text, logprobs=[])
            said += self._send("response.content_part.done", **self._place, part=_part(self._text))
        self._kind = None
        return said + self._done(item)

    def _whole_call(self, call: ToolCall) -> str:
        number = sum(item["type"] == "function_call" for item in self._items)
        item = _call(f"fc_{self._name}_{number}", call, "completed")
        position = {"item_id": item["id"], "output_index": len(self._items)}
        said = self._added({**item, "status": "in_progress", "arguments": ""})
        said += self._send("response.function_call_arguments.delta", **position, delta=call.arguments)
        said += self._send(
            "response.function_call_arguments.done", **position, name=call.name, arguments=call.arguments
        )
        return said + self._done(item)

    @property
    def _place(self) -> dict[str, Any]:
        part = "summary_index" if self._kind == "reasoning" else "content_index"
        return {"item_id": self._id, "output_index": len(self._items), part: 0}

    def _added(self, item: dict[str, Any]) -> str:
        return self._send("response.output_item.added", output_index=len(self._items), item=item)

    def _done(self, item: dict[str, Any]) -> str:
        self._items.append(item)
        return self._send("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _response(self, status: str) -> dict[str, Any]:
        return {**self._head, "status": status, "incomplete_details": None, "output": self._items, "usage": None}

    def _send(self, kind: str, /, **fields: Any) -> str:
        text = event({"type": kind, "sequence_number": self._number, **fields}, kind)
        self._number += 1
        return text


def _finished(head: dict[str, Any], response: Response, items: list[dict[str, Any]]) -> dict[str, Any]:
    truncated = response.message.is_truncated
    return {
        **head,
        "status": "incomplete" if truncated else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if truncated else None,
        "output": items,
        "usage": _usage(response),
    }


def _head(request: TurnRequest, answer: AnswerId) -> dict[str, Any]:
    """What the official client insists on finding, with the values that hold here."""
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "model": request.model,
        "error": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "store": False,
        "temperature": request.sampling_args.get("temperature"),
        "tool_choice": "auto",
        "tools": [],
        "top_p": request.sampling_args.get("top_p"),
    }


def _reasoning(item_id: str, text: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": item_id, "summary": [{"type": "summary_text", "text": text}]}


def _message(item_id: str, text: str, status: str) -> dict[str, Any]:
    return {"type": "message", "id": item_id, "role": "assistant", "status": status, "content": [_part(text)]}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call(item_id: str, call: ToolCall, status: str) -> dict[str, Any]:
    head = {"type": "function_call", "id": item_id, "status": status}
    return {**head, "call_id": call.id, "name": call.name, "arguments": call.arguments}


def _usage(response: Response) -> dict[str, Any]:
    usage = response.usage
    read, written = (usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0)
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }
