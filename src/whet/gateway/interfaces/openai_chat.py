"""`/v1/chat/completions`, as OpenAI's API reference describes it.

Beyond it, as vLLM has it: `return_token_ids` adds `prompt_token_ids` and `token_ids`, and with `logprobs` each token is
named by its id, so that a trainer on the other side sees exactly what was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from whet.clients.client import Delta
from whet.gateway.interfaces.openai_common import ChoiceEvents, FunctionSpec, SamplingBody, chosen_tools, usage_of
from whet.gateway.interfaces.openai_common import write_error as write_error
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
from whet.types import Response, ToolCall


class ChatFunction(FunctionSpec):
    name: str = Field(min_length=1)


class ChatTool(Body):
    type: str
    function: ChatFunction


class ChatBody(SamplingBody):
    """The fields of OpenAI's chat completions that are read."""

    messages: list[Any] = Field(max_length=MOST_MESSAGES)
    tools: list[ChatTool] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None
    max_completion_tokens: int | None = Field(None, ge=1, le=INT64["le"])
    logprobs: bool | None = None


def read_request(body: Any) -> TurnRequest:
    """The turn of a body in JSON. Raises `RequestError` for what is malformed or cannot be done here."""
    chat = read_body(ChatBody, body)
    if chat.response_format is not None and chat.response_format.get("type") != "text":
        raise RequestError("response_format: only {'type': 'text'} is possible here", param="response_format")
    return chat.turn(
        read_messages(chat.messages, "messages"),
        chat.max_completion_tokens or chat.max_tokens,
        tools=chosen_tools([(tool.type, tool.function) for tool in chat.tools or ()], chat.tool_choice),
        logprobs=bool(chat.logprobs),
    )


def write_answer(request: TurnRequest, responses: Sequence[Response]) -> dict[str, Any]:
    """A `chat.completion` with a choice for each response."""
    head = _head(request, AnswerId(responses[0].id, responses[0].created), "chat.completion")
    choices = [_choice(request, response, index) for index, response in enumerate(responses)]
    return {**head, "choices": choices, "usage": usage_of(responses), **_prompt(request, responses[0])}


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
    """The writer of `chat.completion.chunk` events."""
    return _Chunks(request, answer)


class _Chunks(ChoiceEvents):
    """A chat completion in chunks. Token ids and logprobs, where requested, come with the last choice."""

    def __init__(self, request: TurnRequest, answer: AnswerId) -> None:
        super().__init__(request, _head(request, answer, "chat.completion.chunk"))
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

    def last(self, index: int, response: Response) -> dict[str, Any]:
        reason = response.message.finish_reason or "stop"
        choice = {"index": index, "delta": {}, "finish_reason": reason, **_tokens(self._request, response)}
        return {"choices": [choice], **_prompt(self._request, response)}

    def _chunk(self, delta: dict[str, Any], choice: int) -> str:
        return event({**self._head, "choices": [{"index": choice, "delta": delta, "finish_reason": None}]})


def _part(index: int, part: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, **part}]}


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


def _prompt(request: TurnRequest, response: Response) -> dict[str, Any]:
    """The fields next to the choices: the prompt's tokens, where requested."""
    tokens = response.message.tokens
    return {"prompt_token_ids": list(tokens.prompt_ids)} if tokens is not None and request.token_ids else {}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
