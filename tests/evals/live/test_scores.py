"""Rewards from sums alone are those that a summary computes from every rollout."""

from __future__ import annotations

import random
import tracemalloc
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.evals.analysis.statistics import clustered_mean
from whet.evals.live.progress import Scores
from whet.rollouts.totals import PassAtK

ROLLOUTS = 3
REWARDS = st.one_of(st.none(), st.sampled_from([0.0, 0.25, 1.0]), st.floats(-1e6, 1e6))


@given(st.lists(st.lists(REWARDS, min_size=1, max_size=ROLLOUTS), min_size=1, max_size=8), st.randoms())
def test_the_mean_and_its_interval_are_those_of_the_summary(
    tasks: list[list[float | None]], order: random.Random
) -> None:
    told = [(task, reward) for task, rewards in enumerate(tasks) for reward in rewards]
    order.shuffle(told)
    scores = Scores(ROLLOUTS)
    for task, reward in told:
        scores.add(task, reward)
    expected = clustered_mean({task: [r for r in rewards if r is not None] for task, rewards in enumerate(tasks)})
    found = scores.reward()
    if expected is None or found is None:
        assert found == expected
        return
    largest = max(abs(reward) for _, reward in told if reward is not None)
    slack = 1e-6 * (1.0 + largest)
    assert found.mean == pytest.approx(expected.mean, abs=slack)
    assert (found.low is None) == (expected.low is None)
    if expected.low is not None:
        # The interval's width is a root, which turns a rounding of 1e-16 of a square into 1e-8.
        assert found.low == pytest.approx(expected.low, abs=1e3 * slack)
        assert found.high == pytest.approx(expected.high, abs=1e3 * slack)


def test_large_rewards_that_hardly_differ_keep_their_interval() -> None:
    values: dict[object, list[float]] = defaultdict(list)
    scores = Scores(2)
    for task in range(50):
        for place in range(2):
            reward = 1e9 + (task % 5) + 0.1 * place
            values[task].append(reward)
            scores.add(task, reward)
    expected, found = clustered_mean(values), scores.reward()
    assert expected is not None
    assert found is not None
    assert expected.low is not None
    assert found.low is not None
    assert found.mean - found.low == pytest.approx(expected.mean - expected.low, rel=1e-6)


def test_tasks_that_are_done_take_no_memory() -> None:
    scores, passes = Scores(2), PassAtK(2, 0.5)

    def add(first: int, count: int) -> None:
        for task in range(first, first + count):
            for reward in (1.0, 0.0):
                scores.add(task, reward)
                passes.add(task, reward)

    add(0, 100)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    add(100, 5000)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 5000
