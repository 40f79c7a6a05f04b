"""A request that was interrupted: what is left of it to sample, and the whole sample put together. Pure.

A stop string that begins before an interruption and ends after it is not found: engines look in what they sample.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from whet.errors import EndpointDownError
from whet.inference.protocol import Sample, SampleRequest, VersionRun
from whet.inference.token_sets import TokenSets


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
    seed = None if params.seed is None else _seed_after(params.seed, len(ids))
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


def _seed_after(seed: int, count: int) -> int:
    """A seed in [0, 2**63) that depends on a request's seed and how many tokens it has alone."""
    digest = hashlib.blake2b(f"{seed}+{count}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
