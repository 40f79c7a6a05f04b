"""What `/v1/chat/completions` and `/v1/completions` have in common: how to sample, how to stream, what was used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from whet.gateway.wire import INT64, Body, given
from whet.inference.protocol import MOST_STOP_CHARACTERS, MOST_STOPS
from whet.types import Response, SamplingArgs

Stop = Annotated[str, Field(max_length=MOST_STOP_CHARACTERS)]


class StreamOptions(Body):
    include_usage: bool = False


class SamplingBody(Body):
    """The fields of both interfaces."""

    model: str
    n: int | None = Field(None, ge=1, le=128)
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
        """The sampling arguments of the request."""
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


def usage_of(responses: Sequence[Response]) -> dict[str, Any]:
    """Of all choices together: their prompt, which is the same, is counted once."""
    usages = [response.usage for response in responses if response.usage is not None]
    read = max((usage.prompt_tokens for usage in usages), default=0)
    written = sum(usage.completion_tokens for usage in usages)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
