"""How far sampler and learner are apart, split by cause: the engine's numerics, or the age of the weights. Pure.

    log p_learner(now) - log q  =  log p_learner(now) - log p_learner(then)  +  log p_learner(then) - log q
                                   staleness                                    engine

`then` are the weights that sampled the token. A token is fresh where those are the learner's present ones, and its
context was computed with them too: there the first difference is 0, and what is left is the engine's. So

    kl_engine    mean k3 over fresh tokens
    kl_stale     kl - kl_engine: what the mean over all trained tokens has more than that

The fresh tokens of a batch cost nothing to look at. Where it has few of them, rollouts that are finished and wait for a
later batch have some: `probe` picks those, and the learner computes their logprobs before its step. A step without any
fresh token has neither metric: nothing is estimated from other steps. Why: docs/design/training-loop.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whet.rl.algorithm_config import AlgorithmConfig
from whet.rl.data.assembly import Assembled, rollout_sequences
from whet.rl.data.batch import PackedBatch, pack
from whet.rl.data.samples import TokenSequence
from whet.rl.learner.protocol import LossOutput
from whet.rl.loop.group import Group

EVIDENCE = 1 / 16
"""Fresh tokens as a share of the trained ones, from which a batch shows the engine's mismatch by itself. Where it has
fewer, that share of the batch is computed once more, prompts included: a forward pass without a backward one."""


@dataclass(frozen=True, slots=True)
class FreshTokens:
    """Sums over fresh tokens, d = log p - log q."""

    tokens: int = 0
    k3: float = 0.0
    difference: float = 0.0  # |d|
    largest: float = 0.0  # of |d|

    @classmethod
    def of(
        cls, learner_T: NDArray[np.float32], sampler_T: NDArray[np.float32], fresh_T: NDArray[np.bool_]
    ) -> FreshTokens:
        """Of the fresh ones of T tokens with their logprobs."""
        difference = learner_T[fresh_T].astype(np.float64) - sampler_T[fresh_T]
        if not len(difference):
            return cls()
        size = np.abs(difference)
        k3 = float((np.expm1(difference) - difference).sum())
        return cls(len(difference), k3, float(size.sum()), float(size.max()))

    def __add__(self, other: FreshTokens) -> FreshTokens:
        return FreshTokens(
            self.tokens + other.tokens,
            self.k3 + other.k3,
            self.difference + other.difference,
            max(self.largest, other.largest),
        )


def fresh_tokens(sequence: TokenSequence, version: int, *, recomputes: bool) -> NDArray[np.bool_]:
    """T; the sampled tokens that the weights of `version`, the newest there are, drew from a context of their own.

    An engine that `recomputes` (`Engine.recomputes`) has such a context after each update; with any other one a turn
    that runs through an update attends to older keys and values until its end. Its next turn is computed afresh.
    """
    fresh_T: NDArray[np.bool_] = sequence.trained & (sequence.versions == version)
    if not recomputes:
        for _, start, stop in sequence.turns:
            sampled = sequence.trained[start:stop]
            if (sequence.versions[start:stop][sampled] != version).any():
                fresh_T[start:stop] = False
    return fresh_T


def fresh_of_batch(
    parts: Sequence[Assembled], losses: Sequence[LossOutput], version: int, *, recomputes: bool
) -> FreshTokens | None:
    """Of the tokens that carry loss. None where the loss does not look at what the sampler did."""
    found = FreshTokens()
    for part, loss in zip(parts, losses, strict=True):
        if loss.values is None:
            return None
        if loss.tokens:
            fresh_T = np.concatenate([fresh_tokens(one, version, recomputes=recomputes) for one in part.sequences])
            found += FreshTokens.of(loss.values.logprobs_T, part.batch.logprobs, fresh_T & part.batch.trained)
    return found


def probe(
    waiting: Iterable[Group],
    config: AlgorithmConfig,
    *,
    temperature: float,
    version: int,
    recomputes: bool,
    tokens: int,
) -> PackedBatch | None:
    """Rollouts with fresh tokens out of groups that wait: as many as `tokens` hold, and one at least; None without any.

    `trained` of the batch are its fresh tokens.
    """
    chosen: list[TokenSequence] = []
    for group in waiting:
        for index in range(len(group.states)):
            for sequence in rollout_sequences(group, index, config, temperature=temperature):
                fresh_T = fresh_tokens(sequence, version, recomputes=recomputes)
                if not fresh_T.any():
                    continue
                if chosen and sum(map(len, chosen)) + len(sequence) > tokens:
                    return pack(chosen)
                chosen.append(replace(sequence, trained=fresh_T))
    return pack(chosen) if chosen else None


def mismatch_metrics(fresh: FreshTokens, loss: LossOutput, *, stale_tokens: int) -> dict[str, float]:
    """`fresh_frac`, and where there are fresh tokens what they show; `loss` and `stale_tokens` are of the batch."""
    found = {"policy/fresh_frac": fresh.tokens / loss.tokens}
    if fresh.tokens:
        found |= {
            "policy/kl_engine": fresh.k3 / fresh.tokens,
            "policy/logprob_diff_mean": fresh.difference / fresh.tokens,
            "policy/logprob_diff_max": fresh.largest,
        }
        if stale_tokens:
            found["policy/kl_stale"] = loss.sums["kl"] / loss.tokens - found["policy/kl_engine"]
    return found
