"""A weight grows on one side of its target and falls on the other, and goes on from a checkpoint."""

import json

import pytest

from whet.rl.data.adaptive_weights import AdaptiveWeights
from whet.rl.sections.algorithm import AlgorithmConfig


def adaptive(**keys: object) -> AdaptiveWeights:
    return AdaptiveWeights(AlgorithmConfig(kl_coef=0.5, **keys))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kl", "expected"),
    [(0.02, 0.5), (0.022, 0.5 * 1.05), (0.019, 0.5 * 0.975), (9.0, 0.5 * 1.1), (0.0, 0.5 * 0.9), (-1.0, 0.5 * 0.9)],
)
def test_a_step_changes_the_kls_weight_by_its_error_within_a_fifth(kl: float, expected: float) -> None:
    weights = adaptive(kl_target=0.02, kl_gain=0.5)
    assert weights.after_step({"policy/kl_ref": kl}) == {"policy/kl_coef": 0.5}
    assert weights.algorithm.kl_coef == pytest.approx(expected, rel=1e-12)


def test_the_bonus_grows_below_its_target_and_is_off_above_it() -> None:
    """Skywork-OR1's rule, worked by hand: c is 0.1 at first, 0.25 a step; the target is 1."""
    weights, used = adaptive(entropy_coef=0.1, entropy_target=1.0, entropy_step=0.25), []
    for entropy in (0.5, 0.9, 1.5, 1.0, 2.0, 2.0, 0.1):
        used.append(weights.after_step({"policy/entropy": entropy})["policy/entropy_coef"])
    assert used == pytest.approx([0.1, 0.35, 0.6, 0.0, 0.35, 0.0, 0.0])
    assert weights.algorithm.entropy_coef == pytest.approx(0.25)
    assert weights.algorithm.kl_coef == 0.5


def test_without_a_target_the_weights_and_the_metrics_are_as_they_were() -> None:
    weights = adaptive()
    assert (weights.after_step({"policy/kl_ref": 9.0}), weights.state_dict()) == ({}, {})
    assert weights.algorithm is weights.config


def test_saved_weights_are_the_same_bit_for_bit() -> None:
    keys = {"kl_target": 0.03, "entropy_target": 1.0, "entropy_step": 0.1}
    weights, other = adaptive(**keys), adaptive(**keys)
    for kl, entropy in ((0.1, 0.5), (0.02, 0.5), (0.031, 1.5)):
        weights.after_step({"policy/kl_ref": kl, "policy/entropy": entropy})
    other.load_state_dict(json.loads(json.dumps(weights.state_dict())))
    again = {"policy/kl_ref": 0.04, "policy/entropy": 0.7}
    assert other.after_step(again) == weights.after_step(again) != {}
    assert other.algorithm == weights.algorithm != weights.config
