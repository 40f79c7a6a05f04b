"""`/inference/v1/generate`, as vLLM has it: token ids in, token ids and logprobs out, from engines that whet runs.

For trainers that render prompts themselves. Source: renderers 0.1.12, `client.py`, which verifiers 0.4 sends with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, StrictInt

from whet.gateway.interfaces.openai_common import SamplingFields, usage_of
from whet.gateway.interfaces.openai_common import write_error as write_error
from whet.gateway.wire import AnswerId, Body, EventWriter, RequestError, TurnRequest, given, read_body
from whet.inference.protocol import MOST_STOPS
from whet.types import Response

TokenId = Annotated[StrictInt, Field(ge=0, lt=2**31)]
_OFF = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "min_tokens": 0, "ignore_eos": False}
"""Sampling parameters that are possible with these values alone."""
_NOT_POSSIBLE = ("logit_bias", "bad_words", "allowed_token_ids", "structured_outputs", "prompt_logprobs")


class TokenSampling(SamplingFields):
    """The sampling parameters that are read; what would change the answer otherwise is refused."""

    stop_token_ids: Annotated[list[TokenId], Field(max_length=MOST_STOPS)] | None = None
    logprobs: int | None = Field(None, ge=0, le=1)


class TokenGenerationBody(Body):
    """The fields of a request that are read."""

    model: str
    token_ids: list[TokenId] = Field(min_length=1)
    sampling_params: dict[str, Any] = Field(default_factory=dict)
    stream: bool | None = None
    features: Any = None
    content_parts: Any = None


def read_request(body: Any) -> TurnRequest:
    """The turn of a body in JSON. Raises `RequestError` for what is malformed or cannot be done here."""
    request = read_body(TokenGenerationBody, body)
    for name in ("stream", "features", "content_parts"):
        if getattr(request, name):
            raise RequestError(f"{name} is not possible here", param=name)
    params = request.sampling_params
    for name in (*_OFF, *_NOT_POSSIBLE):
        if params.get(name) not in (None, _OFF.get(name)):
            raise RequestError(f"sampling_params.{name} is not possible here", param=f"sampling_params.{name}")
    sampling = read_body(TokenSampling, params)
    args = given(
        **{name: getattr(sampling, name) for name in TokenSampling.model_fields if name not in ("n", "logprobs")}
    )
    return TurnRequest(
        model=request.model,
        messages=[],
        sampling_args=args,
        prompt_ids=request.token_ids,
        choices=sampling.n or 1,
        token_ids=True,
        logprobs=True,
    )


def write_answer(request: TurnRequest, responses: Sequence[Response]) -> dict[str, Any]:
    """Ids and logprobs of each choice; a token is written as vLLM writes one without its text."""
    choices = []
    for index, response in enumerate(responses):
        tokens = response.message.tokens
        assert tokens is not None
        pairs = zip(tokens.completion_ids, tokens.completion_logprobs, strict=True)
        content = [
            {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
            for token, logprob in pairs
        ]
        choices.append(
            {
                "index": index,
                "token_ids": tokens.completion_ids,
                "logprobs": {"content": content},
                "finish_reason": response.message.finish_reason,
            }
        )
    return {
        "request_id": responses[0].id,
        "model": request.model,
        "choices": choices,
        "prompt_logprobs": None,
        "usage": usage_of(responses),
    }


def write_stream(request: TurnRequest, answer: AnswerId) -> EventWriter:
    """Never: a request for a stream is refused when it is read."""
    raise RequestError("stream is not possible here", param="stream")
