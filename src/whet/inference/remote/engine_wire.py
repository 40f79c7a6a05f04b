"""The HTTP protocol of an engine: requests and answers as JSON, for both sides.

`/v1/completions` is vLLM's where it takes a prompt as token ids and returns token ids. Beyond it a request may name its
group and its rollout, and a choice has the policy version that sampled its tokens, in runs of `[version, count]`. What
only the owner of an engine requests (`/weights`, `/release`, `/adapters/unload`, `/facts`) is whet's own. Numbers
survive bit by bit: JSON as Python writes it holds a float exactly.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from whet.config import StrictModel
from whet.errors import Error, ModelError, ModelLoadError, OverlongPromptError, RequestRefusedError, WhetError
from whet.inference.protocol import Sample, SampleRequest, SamplingParams, VersionRun, WeightUpdate
from whet.inference.token_sets import TokenSets

KEY_HEADER = "x-whet-key"
_BY_TYPE: dict[str, type[Exception]] = {
    error.__name__: error for error in (ModelError, OverlongPromptError, RequestRefusedError, ModelLoadError)
}
"""Errors that arrive as what they are. Others of a request arrive as `ModelError`."""


_PARAMS = tuple(SamplingParams().values())
WEIGHTS = TypeAdapter(WeightUpdate)
"""The body of `/weights`. Its path is one of the engine's own host."""


class EngineCompletionBody(StrictModel):
    """The body of `/v1/completions`; see `SampleRequest` and `SamplingParams`."""

    prompt: list[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    group_key: str | None = None
    rollout_key: str | None = None
    model: str | None = Field(None, description="Name of an adapter; absent, the engine's own weights.")
    stream: bool = False

    def request(self) -> SampleRequest:
        params = SamplingParams(**{name: getattr(self, name) for name in _PARAMS})
        return SampleRequest(self.prompt, params, self.group_key, self.rollout_key, self.model)


class ReleaseBody(StrictModel):
    """The body of `/release`."""

    rollout_key: str


class EngineUnloadBody(StrictModel):
    """The body of `/adapters/unload`."""

    adapter: str


class EngineFacts(StrictModel):
    """The answer of `/facts`."""

    version: int
    max_context: int
    generated_tokens: int
    decode_steps: int
    busy_seconds: float
    answer_lengths: list[int] = Field(default=[], description="Tokens so far of each answer that is being sampled.")


def completion_of(request: SampleRequest, *, stream: bool) -> dict[str, Any]:
    """The body of `request`; fields with the defaults of `EngineCompletionBody` are left out."""
    given = {
        "prompt": request.prompt_ids,
        **request.params.values(),
        "group_key": request.group_key,
        "rollout_key": request.rollout_key,
        "model": request.adapter,
        "stream": stream,
    }
    fields = EngineCompletionBody.model_fields
    return {name: value for name, value in given.items() if value != fields[name].default}


def answer_of(sample: Sample) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0,
        "token_ids": sample.ids,
        "logprobs": {"token_logprobs": sample.logprobs},
        "finish_reason": sample.finish_reason,
        "policy_versions": sample.versions,
    }
    if sample.experts is not None:
        choice["routed_experts"] = {"shape": sample.experts.shape, "data": _encoded(sample.experts, "<i2")}
    if sample.kept_mass is not None:
        choice["kept_mass"] = sample.kept_mass
    if sample.kept is not None:
        choice["kept"] = {"counts": sample.kept.counts.tolist(), "data": _encoded(sample.kept.ids, "<i4")}
    return {"object": "text_completion", "choices": [choice]}


def sample_in(answer: dict[str, Any]) -> Sample:
    (choice,) = answer["choices"]
    experts, kept = choice.get("routed_experts"), choice.get("kept")
    return Sample(
        ids=choice["token_ids"],
        logprobs=choice["logprobs"]["token_logprobs"],
        versions=[VersionRun(*run) for run in choice["policy_versions"]],
        finish_reason=choice["finish_reason"],
        experts=None if experts is None else _decoded(experts["data"], "<i2").reshape(experts["shape"]),
        kept_mass=choice.get("kept_mass"),
        kept=None if kept is None else TokenSets(np.array(kept["counts"], np.int32), _decoded(kept["data"], "<i4")),
    )


def _encoded(values: NDArray[Any], dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode()


def _decoded(data: str, dtype: str) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(data), dtype=dtype).copy()


def failure_of(error: Exception) -> dict[str, Any]:
    """The answer to a request that failed with an error that may be shown to its sender."""
    return {"error": {"type": type(error).__name__, "message": str(error)}}


def error_in(answer: Any) -> Error | WhetError:
    """The error that `failure_of` wrote."""
    try:
        sent = answer["error"]
        kind, message = _BY_TYPE.get(sent["type"], ModelError), str(sent["message"])
    except (KeyError, TypeError):
        return ModelError(f"the engine answered what is no answer: {str(answer)[:200]}")
    error = kind(message)
    assert isinstance(error, Error | WhetError)
    return error


BODIES: dict[str, TypeAdapter[Any]] = {
    "/v1/completions": TypeAdapter(EngineCompletionBody),
    "/weights": WEIGHTS,
    "/release": TypeAdapter(ReleaseBody),
    "/adapters/unload": TypeAdapter(EngineUnloadBody),
}
"""What each path of an engine server takes."""
