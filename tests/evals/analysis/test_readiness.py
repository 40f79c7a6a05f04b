"""Whether to train on an environment: a verdict on its rewards, their spread inside groups, and what to change."""

from __future__ import annotations

import pytest

from whet.evals.analysis.readiness import readiness


@pytest.mark.parametrize(
    ("share", "verdict"),
    [
        (0.0, "too hard"),
        (0.04, "too hard"),
        (0.05, "hard"),
        (0.09, "hard"),
        (0.1, "good"),
        (0.7, "good"),
        (0.75, "easy"),
        (0.8, "easy"),
        (0.81, "too easy"),
    ],
)
def test_the_verdict_goes_by_the_mean_reward(share: float, verdict: str) -> None:
    assert readiness({0: [share, share]}, pass_threshold=0.5).verdict == verdict


def test_rewards_outside_zero_and_one_are_judged_by_how_many_pass() -> None:
    found = readiness({0: [3.0, -1.0], 1: [0.2, 0.1]}, pass_threshold=0.5)
    assert (found.measure, found.score, found.verdict) == ("pass rate", 0.25, "good")


def test_the_spread_is_that_inside_groups_not_between_them() -> None:
    apart = readiness({0: [0.0, 0.0], 1: [1.0, 1.0]}, pass_threshold=0.5)
    assert (apart.group_std, apart.zero_variance_frac) == (0.0, 1.0)
    assert "no variance" in apart.advice[-1]
    within = readiness({0: [0.0, 1.0], 1: [0.0, 1.0]}, pass_threshold=0.5)
    assert (within.group_std, within.zero_variance_frac, within.advice) == (0.5, 0.0, [])


def test_one_rollout_a_task_is_told_to_say_nothing_about_spread() -> None:
    found = readiness({0: [0.5], 1: [0.4]}, pass_threshold=0.5)
    assert (found.group_std, found.zero_variance_frac) == (None, None)
    assert "-r 4" in found.advice[-1]


def test_greedy_rollouts_are_not_mistaken_for_groups_without_variance() -> None:
    advice = readiness({0: [0.5, 0.5]}, pass_threshold=0.5, greedy=True).advice
    assert advice == [line for line in advice if "no variance" not in line]
    assert "temperature 1" in advice[-1]


def test_many_errors_are_the_first_thing_to_mend() -> None:
    assert readiness({0: [0.5, 0.4]}, pass_threshold=0.5, errors=2).advice[0].startswith("2 of 4 rollouts failed")


def test_answers_that_no_parser_could_read_are_pointed_at_before_the_difficulty() -> None:
    advice = readiness({0: [0.0, 0.0]}, pass_threshold=0.5, parse_failed_frac=0.4).advice
    assert advice[0].startswith("In 40% of the rollouts the parser found no answer")
    assert readiness({0: [0.5, 0.4]}, pass_threshold=0.5, parse_failed_frac=0.1).advice == []
