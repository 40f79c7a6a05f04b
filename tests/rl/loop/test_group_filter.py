"""Which finished groups fill a slot of a batch, which are replaced, and when the run must stop."""

import pytest

from whet.errors import RewardError, TrainingError
from whet.rl.data.curriculum import DrawnTask
from whet.rl.loop.group import Group, describe_error, zero_variance_fraction
from whet.rl.loop.group_filter import GroupFilter
from whet.types import State


def group(slot: int, rewards: list[float], *, error: Exception | None = None, attempt: int = 0) -> Group:
    states = [State(reward=reward, error=None) for reward in rewards]
    if error is not None:
        states[0]["error"] = error
    return Group(slot, DrawnTask(10 * slot + attempt, 0, slot, 0), "env", states)


def test_a_group_with_an_errored_rollout_is_replaced_and_counted() -> None:
    group_filter, second = GroupFilter(), group(0, [0, 1], attempt=1)
    assert group_filter.decide(group(0, [0, 1], error=RewardError("no"))) is None
    assert group_filter.decide(second) is second
    assert group_filter.tally.errored_rollouts == 1
    assert group_filter.tally.rejected == {"errored": 1}


def test_without_a_threshold_a_group_of_equal_rewards_stays() -> None:
    equal = group(0, [1, 1])
    assert GroupFilter().decide(equal) is equal


def test_with_a_threshold_a_group_of_equal_rewards_is_replaced() -> None:
    group_filter, second = GroupFilter(min_variance=0.01), group(0, [0, 1], attempt=1)
    assert group_filter.decide(group(0, [1, 1])) is None
    assert group_filter.decide(second) is second


def test_a_slot_out_of_attempts_takes_the_group_with_most_variance() -> None:
    group_filter, best = GroupFilter(min_variance=0.5, max_attempts=3), group(0, [0, 1], attempt=1)
    assert group_filter.decide(group(0, [1, 1], attempt=0)) is None
    assert group_filter.decide(best) is None
    assert group_filter.decide(group(0, [1, 1], attempt=2)) is best


def test_nothing_but_errors_stops_the_run_with_the_commonest_one() -> None:
    group_filter = GroupFilter(max_attempts=2)
    group_filter.decide(group(0, [0, 1], error=RewardError("the judge is down")))
    with pytest.raises(TrainingError, match="the judge is down"):
        group_filter.decide(group(0, [0, 1], error=RewardError("the judge is down")))


def test_the_share_of_groups_that_teach_nothing() -> None:
    assert zero_variance_fraction([group(0, [1, 1]), group(1, [0, 1])]) == 0.5


def test_an_error_is_described_with_its_causes_on_one_line() -> None:
    error = RewardError("reward failed")
    error.__cause__ = ValueError("two\nlines")
    assert describe_error(error) == "RewardError: reward failed <- ValueError: two lines"
