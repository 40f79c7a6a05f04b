"""Several optimiser steps over one batch: every token once an epoch; what separates learner and sampler is a factor."""

import numpy as np
import pytest
from pydantic import ValidationError

from whet.rl.config import RunConfig
from whet.rl.data.assembly import Assembled
from whet.rl.data.batch import TokenSequence, pack
from whet.rl.data.passes import compared_with, loss_of_passes, passes_over
from whet.rl.sections.algorithm import AlgorithmConfig

LENGTHS = [3, 4, 2, 5]
"""Of sequences: a token of a prompt and what was sampled; two groups of two."""


def sequence(length: int) -> TokenSequence:
    shown = TokenSequence.demonstration([1] * length, [False] + [True] * (length - 1))
    shown.logprobs[1:] = -1.0
    return shown


def assembled(weights: list[float] | None = None) -> Assembled:
    batch = pack([sequence(n) for n in LENGTHS], [1.0, -1.0, 0.5, -0.5], weights, [0, 0, 1, 1])
    return Assembled(batch, [], [], {}, [[1, 1], [1, 1]], [5.0, 5.0])


def steps(**keys: object) -> list[tuple[list[int], float]]:
    whole, config = assembled(), AlgorithmConfig(**keys)  # type: ignore[arg-type]
    old_T = np.where(whole.batch.trained, -0.5, 0).astype(np.float32)
    return [(one.tokens.tolist(), one.divisor) for one in passes_over(whole, config, old_T, seed=(0, 3))]


def test_each_epoch_has_every_token_once() -> None:
    made = steps(minibatches=2, epochs=3)
    assert len(made) == 6
    for first, second in zip(made[::2], made[1::2], strict=True):
        assert sorted(first[0] + second[0]) == list(range(sum(LENGTHS)))
        assert first[1] + second[1] == 10


def test_the_same_seed_and_step_shuffle_alike() -> None:
    assert steps(minibatches=2, epochs=5) == steps(minibatches=2, epochs=5)
    assert len({tuple(tokens) for tokens, _ in steps(minibatches=2, epochs=5)}) == 2


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"tis_limit": 1.2}, [[1.2, 0.5], [1.2] * 3, [1.0], [1.2] * 4]),
        ({"tis_limit": 1.2, "tis_level": "sequence"}, [[1.0, 1.0], [1.2] * 3, [1.0], [1.2] * 4]),
        ({"tis_limit": 3.0, "tis_level": "geometric"}, [[1.0, 1.0], [2.0] * 3, [1.0], [2.0] * 4]),
        ({"mis_limit": 1.5}, [[0, 0], [0] * 3, [1], [0] * 4]),
        ({"mis_limit": 1.5, "mis_level": "sequence"}, [[1, 1], [0] * 3, [1], [0] * 4]),
    ],
)
def test_what_separates_learner_and_sampler_is_a_factor_within_limits(limits: dict[str, object], expected) -> None:
    config = AlgorithmConfig(loss="ppo", old_logprobs="recomputed", **limits)  # type: ignore[arg-type]
    batch = assembled().batch
    ratios = [1, 2, 0.5, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2]  # of the learner to the sampler; 1 where nothing was sampled
    old_T = np.where(batch.trained, batch.logprobs + np.log(ratios), 0).astype(np.float32)
    seen = compared_with(old_T, batch, config)
    np.testing.assert_array_equal(seen.logprobs, old_T)
    if expected is None:
        assert seen.weights is None
    else:
        assert seen.weights is not None
        np.testing.assert_allclose(seen.weights[batch.trained], np.concatenate(expected), rtol=1e-6)
    assert loss_of_passes(config).tis_limit is None


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"minibatches": 3}, "does not divide the 16 groups"),
        ({"loss": "ppo", "tis_limit": 2.0, "tis_level": "sequence"}, "needs old_logprobs"),
        ({"tis_level": "sequence"}, "tis_limit is not set"),
        ({"loss": "cross_entropy", "old_logprobs": "recomputed"}, "has no ratio"),
    ],
)
def test_what_has_no_meaning_is_refused(algorithm: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RunConfig(name="r", env=[{"id": "reverse-text"}], algorithm=algorithm)  # type: ignore[arg-type]
