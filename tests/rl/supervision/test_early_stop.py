"""When held-out scores say that training on would be a waste."""

from __future__ import annotations

import math

import pytest

from whet.errors import ConfigError
from whet.rl.monitors.protocol import EvalReport
from whet.rl.supervision.ending import EarlyStopConfig, check_metric, reason_of_losses, reason_to_stop
from whet.rollouts.totals import EvalScore


def evaluations(*rewards: float, environment: str = "a") -> list[EvalReport]:
    """One before training, the others every ten steps."""
    return [
        EvalReport(
            "during" if number else "before",
            number * 10,
            number * 10,
            [
                EvalScore(environment, "temperature 1", reward, {"exact_match": 1 - reward}, 8),
                EvalScore(environment, "greedy", 0.0, {}, 8),
            ],
        )
        for number, reward in enumerate(rewards)
    ]


def test_scores_that_rise_go_on() -> None:
    assert reason_to_stop(EarlyStopConfig(patience=1), evaluations(0.1, 0.2, 0.3)) is None


def test_patience_counts_evaluations_since_the_best() -> None:
    config = EarlyStopConfig(patience=2)
    assert reason_to_stop(config, evaluations(0.1, 0.3, 0.2)) is None
    assert reason_to_stop(config, evaluations(0.1, 0.3, 0.2, 0.25)) == (
        "eval reward has not been better than 0.300 (step 10) for 2 evaluations: early_stop.patience = 2"
    )


def test_a_gain_below_min_delta_is_no_new_best() -> None:
    scores = evaluations(0.1, 0.15, 0.18)
    assert reason_to_stop(EarlyStopConfig(patience=2, min_delta=0.1), scores) is not None
    assert reason_to_stop(EarlyStopConfig(patience=2, min_delta=0.05), scores) is None


def test_a_fall_far_below_the_best_ends_the_run_at_once() -> None:
    config = EarlyStopConfig(patience=10, collapse=0.5)
    assert reason_to_stop(config, evaluations(0.1, 0.9, 0.41)) is None
    assert "fell from 0.900 (step 10) to 0.400 (step 20)" in str(reason_to_stop(config, evaluations(0.1, 0.9, 0.4)))


def test_an_evaluation_in_which_every_rollout_errored_says_nothing() -> None:
    config = EarlyStopConfig(patience=2)
    assert reason_to_stop(config, evaluations(0.5, 0.4, math.nan)) is None
    assert reason_to_stop(config, evaluations(0.5, math.nan, 0.4, 0.3)) is not None


def test_the_metric_may_be_a_reward_function_of_one_environment() -> None:
    config = EarlyStopConfig(metric="exact_match", environment="a", patience=2)
    assert "eval exact_match of a" in str(reason_to_stop(config, evaluations(0.1, 0.2, 0.3)))


def test_a_metric_that_nothing_measures_is_refused_by_name() -> None:
    (report,) = evaluations(0.5)
    with pytest.raises(ConfigError, match=r"'exact' is not what evaluations measure; choose from exact_match, reward"):
        check_metric(EarlyStopConfig(metric="exact"), report)
    check_metric(EarlyStopConfig(metric="exact_match"), report)


LOSSES = [(0, 2.0), (10, 1.5), (20, 1.6), (30, 1.55), (40, 1.7)]


def test_a_loss_is_better_where_it_is_lower() -> None:
    config = EarlyStopConfig(metric="validation/loss", patience=2)
    assert reason_of_losses(config, LOSSES[:3]) is None
    assert reason_of_losses(config, LOSSES[:4]) == (
        "validation/loss has not been better than 1.500 (step 10) for 2 validations: early_stop.patience = 2"
    )


def test_a_loss_that_has_fallen_by_less_than_min_delta_is_no_new_best() -> None:
    falling = [(step, 2.0 - step / 100) for step in range(0, 40, 10)]
    assert reason_of_losses(EarlyStopConfig(patience=3), falling) is None
    assert reason_of_losses(EarlyStopConfig(patience=3, min_delta=0.5), falling) is not None


def test_a_loss_that_rises_far_above_its_best_ends_the_run_at_once() -> None:
    config = EarlyStopConfig(metric="validation/loss", patience=9, collapse=0.2)
    assert reason_of_losses(config, LOSSES[:4]) is None
    assert reason_of_losses(config, LOSSES) == (
        "validation/loss rose from 1.500 (step 10) to 1.700 (step 40): early_stop.collapse"
    )


def test_a_loss_that_is_no_number_says_nothing() -> None:
    config = EarlyStopConfig(patience=1)
    assert reason_of_losses(config, [(0, 1.0), (1, math.nan)]) is None
    assert reason_of_losses(config, [(0, 1.0), (1, math.nan), (2, 1.1)]) is not None
