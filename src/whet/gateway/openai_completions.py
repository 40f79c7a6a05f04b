"""`/v1/completions`, as OpenAI's API reference describes it: plain text goes on, one text a request."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from whet.clients.deltas import Delta
from whet.gateway.openai_chat import write_error as write_error
from whet.gateway.openai_sampling import SamplingBody, refuse_several, usage_of
from whet.gateway.wire import AnswerId, RequestError, TurnRequest, event, read_body
from whet.types import Response, TextMessage


class CompletionBody(SamplingBody):
    prompt: str | list[Any]
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: int | None = Field(None, ge=0)


def read_request(body: Any) -> TurnRequest:
    asked = read_body(CompletionBody, body)
    refuse_several(asked.n)
    refuse_several(asked.best_of)
    for name in ("echo", "suffix"):
        if getattr(asked, name):
            raise RequestError(f"{name} is not possible here", param=name)
    prompt = asked.prompt
    if isinstance(prompt, list):
        if len(prompt) != 1 or not isinstance(prompt[0], str):
            raise RequestError("prompt: one text a request is possible here", param="prompt")
        prompt = prompt[0]
    if not prompt:
        raise RequestError("prompt should not be empty", param="prompt")
    return TurnRequest(
        model=asked.model,
        messages=[TextMessage(prompt)],
        sampling_args=asked.sampling_args(asked.max_tokens or 16),  # the interface's own default
        stream=bool(asked.stream),
        stream_usage=asked.wants_usage,
        token_ids=bool(asked.return_token_ids),
        logprobs=asked.logprobs is not None,
    )


def write_answer(request: TurnRequest, response: Response) -> dict[str, Any]:
    head = _head(request, AnswerId(response.id, response.created))
    choice = _choice(response.message.content or "", response.message.finish_reason or "stop")
    return {**head, "choices": [{**choice, **_tokens(request, response)}], "usage": usage_of(response)}


def write_stream(request: TurnRequest, answer: AnswerId) -> _Pieces:
    return _Pieces(request, answer)


class _Pieces:
    """A completion in pieces. Token ids and logprobs, where they are asked for, come with the last one."""

    def __init__(self, request: TurnRequest, answer: AnswerId) -> None:
        self._request, self._head = request, _head(request, answer)
        if request.stream_usage:
            self._head["usage"] = None

    def begin(self, prompt_tokens: int | None) -> str:
        return ""

    def add(self, delta: Delta) -> str:
        return event({**self._head, "choices": [_choice(delta.content, None)]}) if delta.content else ""

    def finish(self, response: Response) -> str:
        choice = _choice("", response.message.finish_reason or "stop")
        last = event({**self._head, "choices": [{**choice, **_tokens(self._request, response)}]})
        if self._request.stream_usage:
            last += event({**self._head, "choices": [], "usage": usage_of(response)})
        return last + event("[DONE]")

    def fail(self, error: RequestError) -> str:
        return event(write_error(error))


def _head(request: TurnRequest, answer: AnswerId) -> dict[str, Any]:
    created = answer.created
    return {"id": f"cmpl-{answer.id}", "object": "text_completion", "created": created, "model": request.model}


def _choice(text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}


def _tokens(request: TurnRequest, response: Response) -> dict[str, Any]:
    """What a choice says of the sampled tokens, as far as it is asked for."""
    tokens, said = response.message.tokens, dict[str, Any]()
    if tokens is not None and request.logprobs:
        said["logprobs"] = {
            "tokens": [f"token_id:{token}" for token in tokens.completion_ids],
            "token_logprobs": tokens.completion_logprobs,
            "top_logprobs": None,
            "text_offset": [],
        }
    if tokens is not None and request.token_ids:
        said |= {"prompt_token_ids": tokens.prompt_ids, "token_ids": tokens.completion_ids}
    return said
