"""What the learner computed for every sampled token, turn by turn, for display. Pure.

    learner_logprobs   log p under the weights that learned from the token, at the temperature it was sampled with
    ratio              the learner's probability over the sampler's: exp(learner - sampler)
    clipped            dropped by the loss, or its ratio was cut (what policy/clip_frac counts); only where some are
    masked             carries no loss at all, for [algorithm] mask_truncated; only where some do

A value is None for a token that was not sampled, or that carries no loss. The viewer shows these (`whet view RUN`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from whet.rl.data.assembly import Assembled
from whet.rl.learner.protocol import TokenValues

Turns = list[dict[str, list[Any]]]
"""Of one rollout: the values of each turn, each as long as its `completion_ids`."""


def turn_details(assembled: Assembled, values: TokenValues) -> list[list[Turns]]:
    """Group by group, rollout by rollout."""
    sequences = enumerate(assembled.sequences)
    return [[_rollout(assembled, values, sequences, count) for count in counts] for counts in assembled.branches]


def _rollout(assembled: Assembled, values: TokenValues, sequences: Iterator[tuple[int, Any]], count: int) -> Turns:
    found: dict[int, dict[str, list[Any]]] = {}
    batch = assembled.batch
    for _ in range(count):
        number, sequence = next(sequences)
        offset = int(batch.cu_seqlens[number])
        for turn, start, stop in sequence.turns:
            place = slice(offset + start, offset + stop)
            trained, sampled = batch.trained[place], sequence.trained[start:stop]
            learner, sampler = values.logprobs_T[place], batch.logprobs[place]
            found[turn] = _values(trained, sampled, learner, sampler, values.clipped_T[place])
    return [found[turn] for turn in sorted(found)]


def _values(trained: Any, sampled: Any, learner: Any, sampler: Any, clipped: Any) -> dict[str, list[Any]]:
    ratio = np.exp(learner.astype(np.float64) - sampler)
    found: dict[str, list[Any]] = {
        "learner_logprobs": [round(float(p), 6) if kept else None for p, kept in zip(learner, trained, strict=True)],
        "ratio": [float(f"{r:.6g}") if kept else None for r, kept in zip(ratio, trained, strict=True)],
    }
    for name, flags in (("clipped", clipped & trained), ("masked", sampled & ~trained)):
        if flags.any():
            found[name] = [int(flag) for flag in flags]
    return found
