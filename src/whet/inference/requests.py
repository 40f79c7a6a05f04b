"""Which requests an engine can answer at all: the rest are refused before they wait for anything.

A request that was interrupted: what is left of it to sample, and the whole sample put together. Pure.

A stop string that begins before an interruption and ends after it is not found: engines look in what they sample.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from whet.errors import EndpointDownError, OverlongPromptError, RequestRefusedError
from whet.inference.protocol import (
    MOST_STOP_CHARACTERS,
    MOST_STOPS,
    Sample,
    SampleRequest,
    SamplingParams,
    Scoring,
    VersionRun,
)

MOST_SCORES, MOST_TARGETS = 128, 1 << 22
"""Likeliest tokens, or draws, at one position; target ids of one request."""


def check_request(
    request: SampleRequest,
    *,
    vocab_size: int,
    max_context: int,
    token_budget: int,
    decodes_text: bool,
    adapters: Collection[str],
    listens: bool,
) -> None:
    """Raises `RequestRefusedError`, or `OverlongPromptError` where prompt and answer together exceed the context.

    Rows of a batch share their tensors, so what passes here must not raise or give NaN in any of them.
    `token_budget` is the room of the whole KV cache in tokens; `adapters` are those that are loaded.
    """
    prompt, params = request.prompt_ids, request.params
    if request.adapter is not None:
        check_adapter(request.adapter, adapters)
    if not prompt or params.max_tokens < 1:
        raise RequestRefusedError("a request needs at least one prompt token and max_tokens of at least 1")
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        raise RequestRefusedError(f"the prompt has a token id outside the vocabulary of {vocab_size}")
    check_params(params)
    total = len(prompt) + params.max_tokens
    if total > max_context:
        raise OverlongPromptError(
            f"prompt ({len(prompt)}) and max_tokens ({params.max_tokens}) exceed the context of {max_context}"
        )
    if total > token_budget:
        raise RequestRefusedError(
            f"prompt ({len(prompt)}) and max_tokens ({params.max_tokens}) need more KV cache than the "
            f"{token_budget} tokens that fit; raise the engine's kv_bytes or lower max_tokens"
        )
    if params.stop and not decodes_text:
        raise RequestRefusedError("stop strings need an engine that was given the model's tokenizer")
    if request.scoring is not None:
        check_scoring(request.scoring, len(prompt), vocab_size, listens=listens)


def check_scoring(scoring: Scoring, prompt_length: int, vocab_size: int | None, *, listens: bool) -> None:
    """Raises `RequestRefusedError` for numbers out of range, and for a request with a listener.

    `vocab_size` is None where the caller does not know it.
    """
    if listens:
        raise RequestRefusedError("a request with scoring gets its answer whole, and has no listener")
    counts = {name: getattr(scoring, name) for name in ("prompt_top", "prompt_draws", "top")}
    most, ids = min(MOST_SCORES, vocab_size or MOST_SCORES), vocab_size or 2**31
    for name, count in counts.items():
        if not is_whole(count) or not 0 <= count <= most:
            raise RequestRefusedError(f"scoring.{name} must be a whole number from 0 to {most}, not {shown(count)}")
    last = scoring.prompt_last
    if last is not None and not (is_whole(last) and 1 <= last < prompt_length):
        raise RequestRefusedError(
            f"scoring.prompt_last must be from 1 to {prompt_length - 1}, the prompt's tokens but one, not {shown(last)}"
        )
    if last is not None and not (scoring.prompt or scoring.prompt_top):
        raise RequestRefusedError("scoring.prompt_last needs scoring.prompt or scoring.prompt_top")
    targets = scoring.targets
    if targets is None:
        return
    if targets.dtype != "int64" or targets.ndim != 2 or len(targets) != prompt_length - 1 or not targets.size:
        raise RequestRefusedError(
            f"scoring.targets must be int64 of shape [{prompt_length - 1}, K] for a prompt of {prompt_length}, not "
            f"{targets.dtype} of {list(targets.shape)}"
        )
    if targets.min() < -1 or targets.max() >= ids or targets.max() < 0:
        raise RequestRefusedError(f"scoring.targets must have token ids below {ids}, or -1 for none")
    if targets.size > MOST_TARGETS:
        raise RequestRefusedError(f"scoring.targets has {targets.size} ids; at most {MOST_TARGETS} are possible")


def check_params(params: SamplingParams) -> None:
    """Raises `RequestRefusedError` for a number that is out of range, and for too many or too long stops."""
    for name, value, most in (
        ("temperature", params.temperature, math.inf),
        ("top_p", params.top_p, 1.0),
        ("min_p", params.min_p, 1.0),
    ):
        if isinstance(value, bool) or not isinstance(value, int | float) or not _within(value, most):
            bound = "" if most == math.inf else f" and at most {most:g}"
            raise RequestRefusedError(f"{name} must be a finite number of at least 0{bound}, not {shown(value)}")
    for name, number in (("max_tokens", params.max_tokens), ("top_k", params.top_k), ("seed", params.seed or 0)):
        if not is_whole(number):
            raise RequestRefusedError(f"{name} must be a whole number of 64 bits, not {shown(number)}")
    check_stops("stop", params.stop, str)
    check_stops("stop_token_ids", params.stop_token_ids, int)


def check_stops(name: str, stops: Any, kind: type) -> None:
    """Raises `RequestRefusedError` unless `stops` is a short list of `kind`, text of which is short too."""
    fits = is_whole if kind is int else lambda stop: isinstance(stop, str)
    if not isinstance(stops, list | tuple) or not all(map(fits, stops)):
        what = "strings" if kind is str else "whole numbers"
        raise RequestRefusedError(f"{name} must be a list of {what}")
    if len(stops) > MOST_STOPS:
        raise RequestRefusedError(f"{name} has {len(stops)} entries; at most {MOST_STOPS} are possible")
    if kind is str and any(len(stop) > MOST_STOP_CHARACTERS for stop in stops):
        raise RequestRefusedError(f"{name} has a string of more than {MOST_STOP_CHARACTERS} characters")


def is_whole(value: object) -> bool:
    """Whether it is an integer that int64 holds."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _within(value: float, most: float) -> bool:
    try:
        return math.isfinite(value) and 0 <= value <= most
    except OverflowError:  # an integer beyond all floats
        return False


def shown(value: object) -> str:
    """A value that was refused, short enough for one line."""
    try:
        return repr(value)[:40]
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits"


def check_adapter(name: str, adapters: Collection[str]) -> None:
    """Raises `RequestRefusedError` for an adapter that is not loaded."""
    if name not in adapters:
        raise RequestRefusedError(f"the engine has no adapter {name!r}; it has: {', '.join(adapters) or 'none'}")


class SampleLostError(EndpointDownError):
    """An engine was lost while it sampled. `part` is what `on_tokens` had received, as a sample, for `joined`."""

    def __init__(self, message: str, part: Sample) -> None:
        super().__init__(message)
        self.part = part


def remaining(request: SampleRequest, ids: list[int]) -> SampleRequest:
    """The request that continues `request` after `ids`, of which there are fewer than its max_tokens.

    Its seed follows from the seed and the number of ids, so the draws after an interruption are not those of the start.
    """
    if not ids:
        return request
    params = request.params
    assert len(ids) < params.max_tokens, "nothing is left to sample"
    seed = None if params.seed is None else seed_after(params.seed, len(ids))
    return replace(
        request,
        prompt_ids=request.prompt_ids + ids,
        params=replace(params, max_tokens=params.max_tokens - len(ids), seed=seed),
        group_key=None,  # its prompt is not that of its group any more
    )


def completed(request: SampleRequest, so_far: Sample) -> Sample | None:
    """The answer to `request`, where all of it was sampled before the interruption; None where some is left."""
    ids, params = so_far.ids, request.params
    if ids and ids[-1] in params.stop_token_ids:
        return replace(so_far, finish_reason="stop")
    return replace(so_far, finish_reason="length") if len(ids) >= params.max_tokens else None


def joined(*parts: Sample) -> Sample:
    """The whole of a sample in parts, each of which continued the one before. What only some of them know is left out.

    Takes time in proportion to the tokens, however many the parts are.
    """
    import numpy as np  # not above: evaluating an endpoint needs neither

    from whet.inference.token_sets import TokenSets

    versions: list[VersionRun] = []
    experts = parts[0].experts
    for part in parts:
        for run in part.versions:
            if versions and versions[-1].version == run.version:
                run = VersionRun(run.version, versions.pop().count + run.count)
            versions.append(run)
    for part in parts[1:]:  # of each token those that it was sampled with
        if experts is not None and part.experts is not None:
            experts = np.concatenate([experts, part.experts[len(experts) :]])
        else:
            experts = part.experts
    masses = [part.kept_mass for part in parts if part.kept_mass is not None]
    kept = [part.kept for part in parts if part.kept is not None]
    return Sample(
        [token for part in parts for token in part.ids],
        [logprob for part in parts for logprob in part.logprobs],
        versions,
        parts[-1].finish_reason,
        experts=experts,
        kept_mass=[mass for part in masses for mass in part] if len(masses) == len(parts) else None,
        kept=TokenSets.joined(kept) if len(kept) == len(parts) else None,
    )


def seed_after(seed: int, count: int) -> int:
    """A seed in [0, 2**63) that depends on a request's seed and how many tokens it has alone."""
    digest = hashlib.blake2b(f"{seed}+{count}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
