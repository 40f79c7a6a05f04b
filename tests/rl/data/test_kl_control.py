"""The weight of the KL grows while the KL is above its target, falls below it, and goes on from a checkpoint."""

import json

import pytest

from whet.rl.data.kl_control import KLController
from whet.rl.sections.algorithm import AlgorithmConfig


def controller(**keys: object) -> KLController:
    return KLController(AlgorithmConfig(kl_coef=0.5, **keys))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kl", "expected"),
    [(0.02, 0.5), (0.022, 0.5 * 1.05), (0.019, 0.5 * 0.975), (9.0, 0.5 * 1.1), (0.0, 0.5 * 0.9), (-1.0, 0.5 * 0.9)],
)
def test_a_step_changes_the_weight_by_its_error_within_a_fifth(kl: float, expected: float) -> None:
    control = controller(kl_target=0.02, kl_gain=0.5)
    assert control.after_step(kl) == {"policy/kl_coef": 0.5}
    assert control.algorithm.kl_coef == pytest.approx(expected, rel=1e-12)


def test_without_a_target_the_weight_and_the_metrics_are_as_they_were() -> None:
    control = controller()
    assert (control.after_step(9.0), control.state_dict(), control.algorithm) == ({}, {}, control.config)


def test_a_saved_weight_is_the_same_bit_for_bit() -> None:
    control, other = controller(kl_target=0.03), controller(kl_target=0.03)
    for kl in (0.1, 0.02, 0.031):
        control.after_step(kl)
    other.load_state_dict(json.loads(json.dumps(control.state_dict())))
    assert other.coef == control.coef != 0.5
