"""A request to sample as the engine takes it, and its answer in protobuf. Everything in a request is hostile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tinker import types
from tinker.proto import tinker_public_pb2 as pb

from whet.hub.errors import HubError
from whet.inference.protocol import Sample, SampleRequest, SamplingParams, Scoring, TokenLogprobs
from whet.inference.requests import seed_after
from whet.tinker.wire import TokenLimits, tensor

SAMPLES = 1024
"""Of one request at most."""
NONE = -99999.0
"""The logprob where there is none, among the most probable ones."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request: what the engine samples, and what its answer looks like."""

    requests: list[SampleRequest]
    targets: pb.Tensor | None  # as they were sent

    def written(self, samples: list[Sample]) -> bytes:
        """The answer: a `SampleResponse`."""
        message, first = pb.SampleResponse(), samples[0]
        for sample in samples:
            sequence = message.sequences.add(
                stop_reason=pb.STOP_REASON_STOP if sample.finish_reason == "stop" else pb.STOP_REASON_LENGTH,
                tokens=np.asarray(sample.ids, "<i4").tobytes(),
                logprobs=np.asarray(sample.logprobs, "<f4").tobytes(),
            )
            if sample.top is not None:
                sequence.topk_sampled_logprobs.CopyFrom(_likeliest(sample.top))
        if (scores := first.prompt_scores) is None:
            return bytes(message.SerializeToString())
        if scores.logprobs is not None:
            message.prompt_logprobs = scores.logprobs.astype("<f4").tobytes()
        if scores.top is not None:
            message.topk_prompt_logprobs.CopyFrom(_likeliest(scores.top))
        if scores.targets is not None and self.targets is not None:
            message.target_prompt_logprobs.CopyFrom(_alike(self.targets, scores.targets))
        if scores.drawn is not None:
            message.prompt_alt_tokens.tokens.CopyFrom(_dense(scores.drawn.ids, pb.DTYPE_INT64, "<i8"))
            message.prompt_alt_tokens.logprobs.CopyFrom(_dense(scores.drawn.logprobs, pb.DTYPE_FLOAT32, "<f4"))
        return bytes(message.SerializeToString())


def wanted(request: types.SampleRequest, limits: TokenLimits, end_ids: tuple[int, ...], *, key: str) -> Wanted:
    """What a request with this `key` wants, but for the adapter. Raises `HubError` naming what is wrong."""
    if not 1 <= request.num_samples <= SAMPLES:
        raise HubError("invalid", f"num_samples: it has to be in 1 to {SAMPLES}.")
    if request.record_stability_info:
        said = "it is for the loss stable_reinforce, which is not published and not here. Take another, such as cispo."
        raise HubError("invalid", f"record_stability_info: {said}")
    prompt = _prompt(request, limits)
    scoring, targets = _scoring(request, len(prompt))
    own = request.sampling_params
    params = _params(own, limits.context - len(prompt), end_ids)
    requests = []
    for number in range(request.num_samples):
        seed = own.seed if own.seed is None or number == 0 else seed_after(own.seed, number)
        of_this = scoring
        if number and scoring is not None:  # the prompt's are the same for all
            of_this = Scoring(top=scoring.top) if scoring.top else None
        requests.append(SampleRequest(prompt, replace(params, seed=seed), group_key=key, scoring=of_this))
    return Wanted(requests, targets)


def _prompt(request: types.SampleRequest, limits: TokenLimits) -> list[int]:
    prompt: list[int] = []
    for chunk in request.prompt.chunks:
        if not isinstance(chunk, types.EncodedTextChunk):
            raise HubError("invalid", f"prompt: this server reads tokens only, not '{chunk.type}'.")
        prompt += chunk.tokens
    if not 0 < len(prompt) < limits.context:
        raise HubError("invalid", f"prompt: it has {len(prompt)} tokens; there have to be 1 to {limits.context - 1}.")
    if min(prompt) < 0 or max(prompt) >= limits.vocabulary:
        raise HubError("invalid", f"prompt: an id is not in 0 to {limits.vocabulary - 1}.")
    return prompt


def _params(given: types.SamplingParams, room: int, end_ids: tuple[int, ...]) -> SamplingParams:
    """Without `stop` the model's own ends count; with a list of some, too; with an empty one none does."""
    stop = [given.stop] if isinstance(given.stop, str) else given.stop
    texts = tuple(each for each in stop or () if isinstance(each, str))
    ids = tuple(each for each in stop or () if isinstance(each, int))
    return SamplingParams(
        max_tokens=room if given.max_tokens is None else given.max_tokens,
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=max(given.top_k, 0),
        stop=texts,
        stop_token_ids=ids if stop is not None and not stop else (*ids, *end_ids),
    )


def _scoring(request: types.SampleRequest, count: int) -> tuple[Scoring | None, pb.Tensor | None]:
    targets = None if request.target_prompt_logprobs is None else _message(request.target_prompt_logprobs, count - 1)
    scoring = Scoring(
        prompt=bool(request.prompt_logprobs),
        prompt_top=request.topk_prompt_logprobs,
        prompt_last=request.prompt_logprobs_last_n,
        targets=None if targets is None else _ids(targets),
        prompt_draws=request.prompt_alt_tokens_k,
        top=request.topk_sample_logprobs,
    )
    numbers = (scoring.prompt_top, scoring.prompt_draws, scoring.top)
    wanted = scoring.of_prompt or any(numbers) or scoring.prompt_last is not None
    return (scoring if wanted else None), targets


def _message(given: Any, rows: int) -> pb.Tensor:
    """The targets as the tensor that they are answered with."""
    where = "target_prompt_logprobs"
    if given.dtype != "int64" or given.shape is None or len(given.shape) != 2 or given.shape[0] != rows:
        raise HubError("invalid", f"{where}: it has to be int64 of shape [{rows}, K].")
    try:
        message = pb.Tensor(dtype=pb.DTYPE_INT64, shape=given.shape)
        data = np.asarray(given.data, "<i8").tobytes()
        if given.sparse_crow_indices is None:
            message.dense = data
        else:
            message.sparse_csr.values = data
            message.sparse_csr.crow_indices = np.asarray(given.sparse_crow_indices, "<i8").tobytes()
            message.sparse_csr.col_indices = np.asarray(given.sparse_col_indices or [], "<i8").tobytes()
    except (OverflowError, ValueError, TypeError):
        raise HubError("invalid", f"{where}: a number is none of 64 bits.") from None
    return message


def _ids(message: pb.Tensor) -> NDArray[np.int64]:
    """Dense, -1 where a sparse tensor names none."""
    dense: NDArray[Any] = tensor("target_prompt_logprobs", message)
    if not message.HasField("sparse_csr"):
        return np.array(dense, np.int64)
    ones = pb.Tensor()
    ones.CopyFrom(message)
    named = np.frombuffer(message.sparse_csr.values, "<i8")
    ones.sparse_csr.values = np.ones_like(named).tobytes()
    return np.where(tensor("target_prompt_logprobs", ones) > 0, dense, -1).astype(np.int64)


def _alike(targets: pb.Tensor, logprobs: NDArray[np.float32]) -> pb.Tensor:
    """Logprobs in the layout of the ids."""
    if not targets.HasField("sparse_csr"):
        return _dense(logprobs, pb.DTYPE_FLOAT32, "<f4")
    message = pb.Tensor()
    message.CopyFrom(targets)
    message.dtype = pb.DTYPE_FLOAT32
    rows = np.diff(np.frombuffer(targets.sparse_csr.crow_indices, "<i8"))
    columns = np.frombuffer(targets.sparse_csr.col_indices, "<i8")
    message.sparse_csr.values = logprobs[np.repeat(np.arange(len(rows)), rows), columns].astype("<f4").tobytes()
    return message


def _dense(values: NDArray[Any], kind: Any, dtype: str) -> pb.Tensor:
    return pb.Tensor(dtype=kind, shape=values.shape, dense=np.ascontiguousarray(values, dtype).tobytes())


def _likeliest(top: TokenLogprobs) -> pb.TopkLogprobs:
    count, width = top.ids.shape
    logprobs = np.nan_to_num(top.logprobs, nan=NONE, neginf=NONE).astype("<f4")
    ids = top.ids.astype("<i4")
    return pb.TopkLogprobs(token_ids=ids.tobytes(), logprobs=logprobs.tobytes(), k=width, length=count)
