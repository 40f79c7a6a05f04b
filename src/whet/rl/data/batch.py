"""`PackedBatch`: the token sequences of one optimiser step, end to end in a few flat arrays.

Columnar on purpose: a batch crosses processes as a handful of buffers, and a field is added in one place. There is no
padding here and no device; a learner arranges tokens for its model (`learner/forward/layout.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whet.inference.token_sets import TokenSets
from whet.rl.data.samples import TokenSequence, concatenated


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch:
    """B sequences of T tokens in all; sequence b owns tokens `cu_seqlens[b] : cu_seqlens[b + 1]`."""

    ids: NDArray[np.int32]  # T
    trained: NDArray[np.bool_]  # T; true exactly where a token was sampled: only these carry loss
    logprobs: NDArray[np.float32]  # T; the sampler's, 0 where not sampled
    advantages: NDArray[np.float32]  # T; 0 where not sampled
    versions: NDArray[np.int32]  # T; policy version of the sampler, -1 where not sampled or not known
    cu_seqlens: NDArray[np.int32]  # B + 1
    temperatures: NDArray[np.float32]  # T; what logits were divided by when sampling; turns and rollouts may differ
    rollouts: tuple[str, ...]  # B; the rollout a sequence belongs to, for error messages
    experts: NDArray[np.int16] | None = None  # T x layers x experts a token; as in `TokenSequence`, None where none has
    kept: TokenSets | None = None  # T; as in `TokenSequence`, None where none has

    @property
    def sequences(self) -> int:
        return len(self.rollouts)

    @property
    def lengths(self) -> NDArray[np.int32]:
        return np.diff(self.cu_seqlens)

    @property
    def sequence_of_token(self) -> NDArray[np.int32]:
        """T; which sequence a token is part of."""
        return np.repeat(np.arange(self.sequences, dtype=np.int32), self.lengths)

    @property
    def trained_tokens(self) -> int:
        """What the summed gradients of this batch are divided by."""
        return int(self.trained.sum())


def pack(sequences: Sequence[TokenSequence], advantages: Sequence[ArrayLike] | None = None) -> PackedBatch:
    """One batch out of sequences and their advantages.

    `advantages` holds, for each sequence, one number or one per token; without it every sampled token weighs 1,
    which is what imitation (`cross_entropy`) wants.
    """
    assert sequences, "a batch holds at least one sequence"
    assert not any(sequence.trained[:1].any() for sequence in sequences), "a sequence's first token has no predictor"
    weights = [1.0] * len(sequences) if advantages is None else advantages
    per_token = [
        np.where(sequence.trained, np.asarray(weight, np.float32), np.float32(0))
        for sequence, weight in zip(sequences, weights, strict=True)
    ]
    return PackedBatch(
        **concatenated(sequences),
        advantages=np.concatenate(per_token),
        cu_seqlens=np.cumsum([0, *map(len, sequences)], dtype=np.int32),
        rollouts=tuple(sequence.rollout for sequence in sequences),
        experts=_experts(sequences),
    )


def _experts(sequences: Sequence[TokenSequence]) -> NDArray[np.int16] | None:
    shapes = {sequence.experts.shape[1:] for sequence in sequences if sequence.experts is not None}
    if not shapes:
        return None
    assert len(shapes) == 1, "one model sampled the batch"
    unknown = shapes.pop()
    return np.concatenate(
        [
            np.full((len(sequence), *unknown), -1, np.int16) if sequence.experts is None else sequence.experts
            for sequence in sequences
        ]
    )
