"""`/v1/completions`, as OpenAI's API reference describes it: plain text is continued, one prompt a request.

A prompt of token ids is scored, as vLLM does it with `prompt_logprobs`: the one token that is sampled has no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

from whet.clients.client import Delta
from whet.gateway.interfaces.openai_common import ChoiceEvents, SamplingBody, usage_of
from whet.gateway.interfaces.openai_common import write_error as write_error
from whet.gateway.wire import AnswerId, RequestError, TurnRequest, event, read_body
from whet.types import Response, TextMessage


class CompletionBody(SamplingBody):
    """The fields of OpenAI's completions that are read."""

    prompt: str | list[Any]
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: int | None = Field(None, ge=0)
    prompt_logprobs: int | None = Field(None, ge=0, le=0)  # of the prompt's own tokens alone


def read_request(body: Any) -> TurnRequest:
    """The turn of a body in JSON. Raises `RequestError` for what is malformed or cannot be done here."""
    request = read_body(CompletionBody, body)
    if request.best_of not in (None, request.n or 1):
        raise RequestError(
            "best_of: as many answers as n are possible here; choose among them yourself", param="best_of"
        )
    for name in ("echo", "suffix"):
        if getattr(request, name):
            raise RequestError(f"{name} is not possible here", param=name)
    prompt = request.prompt
    if request.prompt_logprobs is not None:
        return _scored(request)
    if isinstance(prompt, list):
        if len(prompt) != 1 or not isinstance(prompt[0], str):
            raise RequestError("prompt: one text a request is possible here", param="prompt")
        prompt = prompt[0]
    if not prompt:
        raise RequestError("prompt should not be empty", param="prompt")
    return request.turn(
        [TextMessage(prompt)],
        request.max_tokens or 16,  # the interface's own default
        logprobs=request.logprobs is not None,
    )


def _scored(request: CompletionBody) -> TurnRequest:
    ids = request.prompt
    if not isinstance(ids, list) or not ids or not all(type(one) is int and 0 <= one < 2**31 for one in ids):
        raise RequestError("prompt_logprobs needs a prompt of token ids", param="prompt")
    if request.stream or request.max_tokens != 1 or (request.n or 1) != 1:
        raise RequestError("prompt_logprobs needs max_tokens = 1 and one answer without a stream", param="max_tokens")
    turn = request.turn([], 1, logprobs=request.logprobs is not None)
    return replace(turn, prompt_ids=ids, prompt_logprobs=True)


def write_answer(request: TurnRequest, responses: Sequence[Response]) -> dict[str, Any]:
    """A `text_completion` with a choice for each response."""
    head = _head(request, AnswerId(responses[0].id, responses[0].created))
    choices = [
        {
            **_choice(index, response.message.content or "", response.message.finish_reason or "stop"),
            **_tokens(request, response),
        }
        for index, response in enumerate(responses)
    ]
    return {**head, "choices": choices, "usage": usage_of(responses)}


def write_stream(request: TurnRequest, answer: AnswerId) -> _Pieces:
    """The writer of `text_completion` events."""
    return _Pieces(request, _head(request, answer))


class _Pieces(ChoiceEvents):
    """A completion in pieces. Token ids and logprobs, where requested, come with the last one."""

    def begin(self, prompt_tokens: int | None) -> str:
        return ""

    def add(self, delta: Delta, choice: int = 0) -> str:
        return event({**self._head, "choices": [_choice(choice, delta.content, None)]}) if delta.content else ""

    def last(self, index: int, response: Response) -> dict[str, Any]:
        choice = _choice(index, "", response.message.finish_reason or "stop")
        return {"choices": [{**choice, **_tokens(self._request, response)}]}


def _head(request: TurnRequest, answer: AnswerId) -> dict[str, Any]:
    created = answer.created
    return {"id": f"cmpl-{answer.id}", "object": "text_completion", "created": created, "model": request.model}


def _choice(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}


def _tokens(request: TurnRequest, response: Response) -> dict[str, Any]:
    """The fields of a choice about its sampled tokens, where requested."""
    tokens, said = response.message.tokens, dict[str, Any]()
    if tokens is not None and request.logprobs:
        said["logprobs"] = {
            "tokens": [f"token_id:{token}" for token in tokens.completion_ids],
            "token_logprobs": tokens.completion_logprobs,
            "top_logprobs": None,
            "text_offset": [],
        }
    if tokens is not None and request.prompt_logprobs:
        pairs = zip(tokens.prompt_ids[1:], tokens.prompt_logprobs[1:], strict=True)
        said["prompt_logprobs"] = [None, *({str(token): {"logprob": logprob}} for token, logprob in pairs)]
    if tokens is not None and request.token_ids:
        said |= {"prompt_token_ids": list(tokens.prompt_ids), "token_ids": tokens.completion_ids}
    return said
