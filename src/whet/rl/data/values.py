"""What a critic's values make of a batch: advantages by `algorithms/gae.py`, and the returns that the critic learns.

Values are computed before the first optimiser step of a batch, and stay what advantages, returns and the clip of the
critic's loss are made of until its last. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from whet.errors import TrainingError
from whet.rl.algorithms.gae import estimate
from whet.rl.data.assembly import Assembled
from whet.rl.loop.group import Group
from whet.rl.sections.algorithm import AlgorithmConfig
from whet.rubrics.rubric import own_step_advantages


def with_values(
    assembled: Assembled, groups: Sequence[Group], values_T: NDArray[np.float32], config: AlgorithmConfig
) -> Assembled:
    """The batch, whose advantages were rewards of tokens, with advantages, values and returns.

    Raises `TrainingError` where an environment set advantages itself, which has no returns.
    """
    for group in groups:
        if group.own_advantages or any(own_step_advantages(state) for state in group.states):
            raise TrainingError(
                f"environment {group.environment} sets advantages itself, and a critic learns returns of rewards. "
                'Choose another [algorithm] advantage than "gae".'
            )
    batch, sequences = assembled.batch, iter(enumerate(assembled.sequences))
    advantages_T, rows = np.zeros(len(batch.ids)), list[list[float]]()
    for counts in assembled.branches:
        rows.append([])
        for count in counts:
            turns = dict[int, NDArray[np.int64]]()
            for _ in range(count):
                number, sequence = next(sequences)
                first = int(batch.cu_seqlens[number])
                turns |= {turn: np.arange(first + start, first + stop) for turn, start, stop in sequence.turns}
            tokens = np.concatenate([np.zeros(0, np.int64), *(turns[turn] for turn in sorted(turns))])
            tokens = tokens[batch.trained[tokens]]
            rewards_C, values_C = (of_T[tokens].astype(np.float64) for of_T in (batch.advantages, values_T))
            advantages_T[tokens] = estimate(rewards_C, values_C, config.discount, config.critic.gae_lambda)
            rows[-1].append(float(advantages_T[tokens].mean()) if len(tokens) else 0.0)
    advantages = advantages_T.astype(np.float32)
    estimated = replace(batch, advantages=advantages, values=values_T, returns=advantages + values_T)
    return replace(assembled, batch=estimated, advantages=rows)


def value_metrics(parts: Sequence[Assembled]) -> dict[str, float]:
    """What the critic expected of a batch before it learned from it; nothing without a critic."""
    batches = [part.batch for part in parts if part.batch.values is not None]
    if not batches:
        return {}
    values_N, returns_N = (
        np.concatenate([getattr(batch, name)[batch.trained] for batch in batches]).astype(np.float64)
        for name in ("values", "returns")
    )
    spread = returns_N.var()
    explained = {"value/explained_variance": float(1 - (returns_N - values_N).var() / spread)} if spread else {}
    return {"value/mean": float(values_N.mean()), "value/return_mean": float(returns_N.mean()), **explained}
