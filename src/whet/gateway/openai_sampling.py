"""What `/v1/chat/completions` and `/v1/completions` have in common: how to sample, how to stream, what was used."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from whet.gateway.wire import INT64, Body, RequestError, given
from whet.inference.protocol import MOST_STOP_CHARACTERS, MOST_STOPS
from whet.types import Response, SamplingArgs

Stop = Annotated[str, Field(max_length=MOST_STOP_CHARACTERS)]


class StreamOptions(Body):
    include_usage: bool = False


class SamplingBody(Body):
    """The fields of both interfaces."""

    model: str
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1, le=INT64["le"])
    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=INT64["le"])
    min_p: float | None = Field(None, ge=0, le=1)
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    seed: int | None = Field(None, ge=INT64["ge"], le=INT64["le"])
    return_token_ids: bool | None = None

    def sampling_args(self, max_tokens: int | None) -> SamplingArgs:
        """What the request asks of the sampler."""
        return given(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            stop=self.stop or None,
            seed=self.seed,
        )

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with what was used."""
        return self.stream_options is not None and self.stream_options.include_usage


def refuse_several(n: int | None) -> None:
    if n not in (None, 1):
        raise RequestError("n: one answer a request is possible here; ask several times", param="n")


def usage_of(response: Response) -> dict[str, Any]:
    usage = response.usage
    if usage is None:
        return {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
