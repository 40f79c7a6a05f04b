"""A mean with an interval that knows rollouts of one task resemble each other."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from whet.evals.analysis.statistics import MeanInterval, clustered_mean, mean_of_means, spread, t_975


def test_the_interval_of_two_tasks_by_hand() -> None:
    # Cluster sums of deviations from 2: -2 and +2; sqrt(2 / 1 * 8) / 4 = 1; times t with one degree of freedom.
    estimate = clustered_mean({0: [1.0, 1.0], 1: [3.0, 3.0]})
    assert estimate is not None
    assert estimate.mean == 2.0
    assert estimate.high == pytest.approx(2.0 + 12.7062)
    assert estimate.low == pytest.approx(2.0 - 12.7062)


def test_the_interval_of_shares_lies_between_zero_and_one() -> None:
    estimate = clustered_mean({0: [0.0, 0.0], 1: [1.0, 1.0]})
    assert estimate is not None
    assert (estimate.low, estimate.high) == (0.0, 1.0)


def test_one_rollout_a_task_gives_the_ordinary_standard_error() -> None:
    values = [1.1, 1.4, 1.9, 1.3, 1.7]
    estimate = clustered_mean(dict(enumerate([value] for value in values)))
    assert estimate is not None
    assert estimate.high is not None
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert estimate.high - estimate.mean == pytest.approx(t_975(4) * error)


def test_repeating_every_rollout_does_not_narrow_the_interval() -> None:
    once = clustered_mean({task: [float(task)] for task in range(8)})
    often = clustered_mean({task: [float(task)] * 10 for task in range(8)})
    assert once is not None
    assert often is not None
    assert often.low == pytest.approx(once.low)


def test_one_task_has_a_mean_and_no_interval_and_none_has_nothing() -> None:
    estimate = clustered_mean({3: [0.0, 1.0]})
    assert estimate is not None
    assert (estimate.mean, estimate.low, estimate.high) == (0.5, None, None)
    assert clustered_mean({}) is None
    assert clustered_mean({3: []}) is None


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.706), (4, 2.776), (5, 2.571), (9, 2.262), (10, 2.228), (30, 2.042), (1000, 1.962)]
)
def test_quantiles_agree_with_the_printed_tables(degrees: int, quantile: float) -> None:
    assert t_975(degrees) == pytest.approx(quantile, abs=1e-3)


def test_the_interval_holds_the_truth_nineteen_times_in_twenty() -> None:
    rng = random.Random(0)
    held = 0
    for _ in range(1000):
        tasks = {}
        for task in range(12):
            skill = rng.random()
            tasks[task] = [float(rng.random() < skill) for _ in range(3)]
        estimate = clustered_mean(tasks)
        assert estimate is not None
        assert estimate.low is not None
        assert estimate.high is not None
        held += estimate.low <= 0.5 <= estimate.high
    assert 930 <= held <= 970


def test_the_mean_over_environments_by_hand() -> None:
    # Errors 0.3 and 0.4: sqrt(0.09 + 0.16) / 2 = 0.25; 0.25^2 / (0.09^2 / 2 + 0.16^2 / 5) = 6.8 -> 6 degrees.
    estimate = mean_of_means([(MeanInterval(0.2, 0, 1, 0.3), 3), (MeanInterval(0.6, 0, 1, 0.4), 6)])
    assert (estimate.mean, estimate.error) == pytest.approx((0.4, 0.25))
    assert estimate.high == pytest.approx(0.4 + 2.4469 * 0.25)
    assert mean_of_means([(MeanInterval(0.2, 0, 1, 0.3), 3), (MeanInterval(1.0, None, None), 1)]).low is None
    exact = mean_of_means([(MeanInterval(1.0, 1, 1, 0.0), 3), (MeanInterval(0.0, 0, 0, 0.0), 3)])
    assert (exact.low, exact.high) == (0.5, 0.5)


def test_the_interval_over_environments_of_other_sizes_holds_the_truth() -> None:
    rng = random.Random(1)
    held = 0
    for _ in range(1000):
        parts = []
        for tasks in (6, 12, 30):
            estimate = clustered_mean({task: [rng.gauss(0.5, tasks / 10)] for task in range(tasks)})
            assert estimate is not None
            parts.append((estimate, tasks))
        whole = mean_of_means(parts)
        assert whole.low is not None
        assert whole.high is not None
        held += whole.low <= 0.5 <= whole.high
    assert 930 <= held <= 970


def test_the_spread_of_equal_values_is_zero() -> None:
    assert spread([0.3, 0.3]) == 0.0
    assert spread([0.0, 1.0]) == 0.5
