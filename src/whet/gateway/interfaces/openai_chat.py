"""`/v1/chat/completions`, as OpenAI's API reference describes it.

Beyond it, as vLLM has it: `return_token_ids` adds `prompt_token_ids` and `token_ids`, and with `logprobs` each token is
named by its id, so that a trainer on the other side sees exactly what was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from whet.clients.deltas import Delta
from whet.gateway.interfaces.openai_sampling import SamplingBody, usage_of
from whet.gateway.wire import (
    INT64,
    MOST_MESSAGES,
    MOST_TOOLS,
    AnswerId,
    Body,
    RequestError,
    TurnRequest,
    event,
    read_body,
    read_messages,
)
from whet.types import Response, Tool, ToolCall


class FunctionSpec(Body):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChatTool(Body):
    type: str
    function: FunctionSpec


class ChatBody(SamplingBody):
    messages: list[Any] = Field(max_length=MOST_MESSAGES)
    tools: list[ChatTool] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None
    max_completion_tokens: int | None = Field(None, ge=1, le=INT64["le"])
    logprobs: bool | None = None


def read_request(body: Any) -> TurnRequest:
    chat = read_body(ChatBody, body)
    if chat.response_format is not None and chat.response_format.get("type") != "text":
        raise RequestError("response_format: only {'type': 'text'} is possible here", param="response_format")
    return TurnRequest(
        model=chat.model,
        messages=read_messages(chat.messages, "messages"),
        tools=chosen_tools(chat.tools, chat.tool_choice),
        sampling_args=chat.sampling_args(chat.max_completion_tokens or chat.max_tokens),
        stream=bool(chat.stream),
        stream_usage=chat.wants_usage,
        token_ids=bool(chat.return_token_ids),
        logprobs=bool(chat.logprobs),
        choices=chat.n or 1,
    )


def write_answer(request: TurnRequest, responses: Sequence[Response]) -> dict[str, Any]:
    head = _head(request, AnswerId(responses[0].id, responses[0].created), "chat.completion")
    choices = [_choice(request, response, index) for index, response in enumerate(responses)]
    return {**head, "choices": choices, "usage": usage_of(responses), **_prompt(request, responses)}


def _choice(request: TurnRequest, response: Response, index: int) -> dict[str, Any]:
    message = response.message
    said: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning_content is not None:
        said["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        said["tool_calls"] = [_call(call) for call in message.tool_calls]
    choice = {"index": index, "message": said, "finish_reason": message.finish_reason or "stop", "logprobs": None}
    return choice | _tokens(request, response)


def write_stream(request: TurnRequest, answer: AnswerId) -> _Chunks:
    return _Chunks(request, answer)


class _Chunks:
    """A chat completion in chunks. Token ids and logprobs, where requested, come with the last choice."""

    def __init__(self, request: TurnRequest, answer: AnswerId) -> None:
        self._request, self._head = request, _head(request, answer, "chat.completion.chunk")
        if request.stream_usage:
            self._head["usage"] = None
        self._calls = [0] * request.choices

    def begin(self, prompt_tokens: int | None) -> str:
        empty = {"role": "assistant", "content": ""}
        return "".join(self._chunk(empty, choice) for choice in range(self._request.choices))

    def add(self, delta: Delta, choice: int = 0) -> str:
        chunks = []
        if delta.reasoning:
            chunks.append({"reasoning_content": delta.reasoning})
        if delta.content:
            chunks.append({"content": delta.content})
        for call in delta.tool_calls:
            named = {"name": call.name, "arguments": ""}
            index = self._calls[choice]
            chunks.append(_part(index, {"id": call.id, "type": "function", "function": named}))
            chunks.append(_part(index, {"function": {"arguments": call.arguments}}))
            self._calls[choice] += 1
        return "".join(self._chunk(chunk, choice) for chunk in chunks)

    def finish(self, responses: Sequence[Response]) -> str:
        last = ""
        for index, response in enumerate(responses):
            reason = response.message.finish_reason or "stop"
            choice = {"index": index, "delta": {}, "finish_reason": reason, **_tokens(self._request, response)}
            last += event({**self._head, "choices": [choice], **_prompt(self._request, responses)})
        if self._request.stream_usage:
            last += event({**self._head, "choices": [], "usage": usage_of(responses)})
        return last + event("[DONE]")

    def fail(self, error: RequestError) -> str:
        return event(write_error(error))

    def _chunk(self, delta: dict[str, Any], choice: int) -> str:
        return event({**self._head, "choices": [{"index": choice, "delta": delta, "finish_reason": None}]})


def _part(index: int, part: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, **part}]}


def write_error(error: RequestError) -> dict[str, Any]:
    return {"error": {"message": error.message, "type": kind_of(error), "param": error.param, "code": error.code}}


def kind_of(error: RequestError) -> str:
    """OpenAI's name for what an HTTP status means."""
    if error.status >= 500:
        return "server_error"
    named = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    return named.get(error.status, "invalid_request_error")


def chosen_tools(tools: list[ChatTool] | None, choice: Any) -> list[Tool] | None:
    """The tools that the model is shown. It cannot be forced to call one, so asking for that is refused."""
    if choice == "none":
        return None
    if choice not in (None, "auto"):
        raise RequestError("tool_choice: only 'auto' and 'none' are possible here", param="tool_choice")
    made = []
    for index, tool in enumerate(tools or ()):
        if tool.type != "function":
            raise RequestError(f"tools.{index}.type: only 'function' is possible here", param=f"tools.{index}.type")
        function = tool.function
        parameters = function.parameters or {"type": "object", "properties": {}}
        made.append(Tool(name=function.name, description=function.description or "", parameters=parameters))
    return made or None


def _head(request: TurnRequest, answer: AnswerId, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": answer.created, "model": request.model}


def _tokens(request: TurnRequest, response: Response) -> dict[str, Any]:
    """The fields of a choice about its sampled tokens, where requested."""
    tokens, said = response.message.tokens, dict[str, Any]()
    if tokens is not None and request.logprobs:
        pairs = zip(tokens.completion_ids, tokens.completion_logprobs, strict=True)
        entries = [{"token": f"token_id:{i}", "logprob": p, "bytes": None, "top_logprobs": []} for i, p in pairs]
        said["logprobs"] = {"content": entries, "refusal": None}
    if tokens is not None and request.token_ids:
        said["token_ids"] = tokens.completion_ids
    return said


def _prompt(request: TurnRequest, responses: Sequence[Response]) -> dict[str, Any]:
    """The fields next to the choices: the prompt's tokens, where requested."""
    tokens = responses[0].message.tokens
    return {"prompt_token_ids": tokens.prompt_ids} if tokens is not None and request.token_ids else {}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
