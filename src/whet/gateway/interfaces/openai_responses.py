"""`/v1/responses`, as OpenAI's API reference has it, without its store: a request brings the conversation whole.

Here requests are read; answers are written in `openai_responses_answer.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from whet.gateway.interfaces.openai_chat import chosen_tools
from whet.gateway.interfaces.openai_chat import write_error as write_error
from whet.gateway.interfaces.openai_responses_answer import write_answer as write_answer
from whet.gateway.interfaces.openai_responses_answer import write_stream as write_stream
from whet.gateway.wire import (
    INT64,
    MOST_MESSAGES,
    MOST_TOOLS,
    Body,
    RequestError,
    TurnRequest,
    given,
    read_body,
    read_messages,
)
from whet.types import ToolCall


class ResponsesTool(Body):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ResponsesBody(Body):
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
        native += _conversation(request.input)
    tools = [_nested(tool, index) for index, tool in enumerate(request.tools or ())]
    return TurnRequest(
        model=request.model,
        messages=read_messages(native, "input"),
        tools=chosen_tools(tools, request.tool_choice),
        sampling_args=given(max_tokens=request.max_output_tokens, temperature=request.temperature, top_p=request.top_p),
        stream=bool(request.stream),
    )


def _conversation(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items as messages. What the model reasoned, said and called in one turn are one message."""
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
            call = ToolCall(*(_string(item, key, where) for key in ("call_id", "name", "arguments")))
            assistant().setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            output = _content(item.get("output"), f"{where}.output")
            native.append({"role": "tool", "tool_call_id": _string(item, "call_id", where), "content": output})
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
        place, kind = f"{where}.{index}", part.get("type") if isinstance(part, dict) else None
        if kind in ("input_text", "output_text", "text"):
            parts.append({"type": "text", "text": _string(part, "text", place)})
        elif kind == "refusal":
            parts.append({"type": "text", "text": _string(part, "refusal", place)})
        elif kind == "input_image":
            parts.append({"type": "image_url", "image_url": {"url": _string(part, "image_url", place)}})
        else:
            raise RequestError(f"{place}: a part of type {kind!r} is not possible here", param=place)
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _string(item: dict[str, Any], key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise RequestError(f"{where}.{key} should be a string", param=f"{where}.{key}")
    return value


def _nested(tool: ResponsesTool, index: int) -> Any:
    """A tool of this interface in the form of chat completions."""
    from whet.gateway.interfaces.openai_chat import ChatTool, FunctionSpec

    if tool.type == "function" and not tool.name:
        raise RequestError(f"tools.{index}.name should be a string", param=f"tools.{index}.name")
    # Checked already; checked once more, names of half characters would not pass.
    function = FunctionSpec.model_construct(
        name=tool.name or "-", description=tool.description, parameters=tool.parameters
    )
    return ChatTool.model_construct(type=tool.type, function=function)
