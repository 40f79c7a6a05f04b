"""A request that was interrupted: what is left of it to sample, and the whole sample put together. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from whet.inference.protocol import Sample, SampleRequest, VersionRun


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


def joined(first: Sample, second: Sample) -> Sample:
    """The whole of a sample and of the one that continued it. What only one of them knows is left out."""
    versions = list(first.versions)
    for run in second.versions:
        if versions and versions[-1].version == run.version:
            run = VersionRun(run.version, versions.pop().count + run.count)
        versions.append(run)
    mass, kept = (first.kept_mass, second.kept_mass), (first.kept, second.kept)
    experts = second.experts
    if first.experts is not None and experts is not None:  # those that the first tokens were sampled with
        experts = np.concatenate([first.experts, experts[len(first.experts) :]])
    return Sample(
        first.ids + second.ids,
        first.logprobs + second.logprobs,
        versions,
        second.finish_reason,
        experts=experts,
        kept_mass=None if mass[0] is None or mass[1] is None else mass[0] + mass[1],
        kept=None if kept[0] is None or kept[1] is None else type(kept[0]).joined([kept[0], kept[1]]),
    )


def _seed_after(seed: int, count: int) -> int:
    """A seed in [0, 2**63) that depends on a request's seed and how many tokens it has alone."""
    digest = hashlib.blake2b(f"{seed}+{count}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
