"""The winner against the seed on held-out examples; see `whet.gepa.search.search`."""

from __future__ import annotations

import random

import pytest
from in_process import SEED, Rolled, examples

from whet.gepa.search.search import compare, confirm
from whet.gepa.types import BudgetSpent, RolloutCall, Scored

BEST = {"system_prompt": "Answer. one two"}


def scored(*rewards):
    """Calls on examples 0, 1, ..., each with its reward."""
    return [
        Scored(RolloutCall("c", f"held_out/task/{number}", 0), reward, None, {})
        for number, reward in enumerate(rewards)
    ]


def test_the_interval_is_that_of_the_paired_differences():
    # By hand: differences 0, 1, 1, 0; mean 0.5, sd sqrt(1/3), t(3) = 3.1824.
    found = compare(scored(0, 0, 0, 1), scored(0, 1, 1, 1))
    reach = 3.1824 * (1 / 3) ** 0.5 / 2
    assert (found.pairs, found.seed_mean, found.best_mean, found.difference) == (4, 0.25, 0.75, 0.5)
    assert (found.low, found.high) == (pytest.approx(0.5 - reach), pytest.approx(0.5 + reach))
    assert not found.real


def test_a_difference_is_real_where_the_interval_lies_above_0():
    assert compare(scored(*[0] * 10), scored(*[1] * 9, 0)).real
    assert not compare(scored(*[1] * 9, 0), scored(*[0] * 10)).real
    assert not compare(scored(*[1] * 10), scored(*[1] * 10)).real


def test_both_are_called_on_the_same_examples_and_on_nothing_else():
    rollouts = Rolled()
    found = confirm(SEED, BEST, examples("held_out", 40), rollouts)
    assert rollouts.phases() == {"confirmation": 80}
    assert len({call.key for _, call in rollouts.asked}) == 80
    assert found.pairs == 40
    assert found.real
    assert found.low < 0.5 < found.high


def test_nothing_is_begun_that_is_not_reserved():
    rollouts = Rolled(most=39)
    with pytest.raises(BudgetSpent):
        confirm(SEED, BEST, examples("held_out", 40), rollouts)
    assert not rollouts.asked


def test_the_seed_is_not_compared_with_itself():
    rollouts = Rolled()
    with pytest.raises(AssertionError):
        confirm(SEED, dict(SEED), examples("held_out", 40), rollouts)
    assert not rollouts.asked


@pytest.mark.parametrize("gain", [0.0, 0.2])
def test_the_interval_holds_the_true_difference_in_95_of_100_comparisons(gain):
    draw = random.Random(gain)
    found = [
        compare(*(scored(*[float(draw.random() < p) for _ in range(50)]) for p in (0.5, 0.5 + gain)))
        for _ in range(1500)
    ]
    # Three standard errors of 1,500 comparisons: 0.017, and 0.012 for one side alone.
    assert sum(one.low <= gain <= one.high for one in found) / 1500 == pytest.approx(0.95, abs=0.02)
    if gain == 0:
        assert sum(one.real for one in found) / 1500 <= 0.025 + 0.012
