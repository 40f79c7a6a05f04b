"""Which finished groups fill a slot of a batch, which are replaced, and when the run must stop."""

import random

import pytest

from whet.errors import RewardError, TrainingError
from whet.rl.data.curriculum import DrawnTask
from whet.rl.loop.group import Group, GroupFilter, describe_error, zero_variance_fraction
from whet.types import State


def group(
    slot: int, rewards: list[float], *, error: Exception | None = None, attempt: int = 0, errored: int = 1
) -> Group:
    states = [State(reward=reward, error=None) for reward in rewards]
    for state in states[: errored if error is not None else 0]:
        state["error"] = error
    return Group(slot, DrawnTask(10 * slot + attempt, 0, slot, 0), "env", states)


def test_a_group_goes_on_without_its_errored_rollouts() -> None:
    group_filter, one = GroupFilter(), group(0, [0, 1, 1], error=RewardError("no"))
    assert group_filter.decide(one) is one
    assert [state["reward"] for state in one.states] == [1, 1]
    assert (group_filter.tally.errored_rollouts, group_filter.tally.unused_rollouts) == (1, 1)
    assert not group_filter.tally.rejected


def test_a_group_whose_environment_compared_its_rollouts_has_to_be_whole() -> None:
    one = group(0, [0, 1, 1], error=RewardError("no"))
    one.own_advantages = True
    assert GroupFilter().decide(one) is None


def test_a_group_with_too_few_scored_rollouts_is_replaced_and_counted() -> None:
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
    group_filter, broken = GroupFilter(max_errored_groups=2), RewardError("the judge is down")
    group_filter.decide(group(0, [0, 1], error=broken, errored=2))
    with pytest.raises(
        TrainingError, match=r"2 groups in a row .*\(4 in all\).* the judge is down.*max_errored_groups"
    ):
        group_filter.decide(group(0, [0, 1], error=broken, errored=2))


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("size", [4, 16])
def test_an_ordinary_rate_of_failing_rollouts_does_not_stop_the_run(rate: float, size: int) -> None:
    draws, group_filter, failed = random.Random(0), GroupFilter(), RewardError("now and then")
    filled = attempts = 0
    while filled < 100 and attempts < 2000:
        errored = sum(draws.random() < rate for _ in range(size))
        attempts += 1
        one = group(0, [0.0] * (size - 1) + [1.0], error=failed if errored else None, attempt=attempts, errored=errored)
        filled += group_filter.decide(one) is one
    assert filled == 100


def test_a_rate_of_failing_rollouts_that_spares_no_group_stops_the_run() -> None:
    group_filter, half = GroupFilter(min_group_size=9), group(0, [0.0] * 16, error=RewardError("half"), errored=8)
    for _ in range(15):
        assert group_filter.decide(half) is None
    with pytest.raises(TrainingError, match="16 groups in a row had errored rollouts"):
        group_filter.decide(half)


def test_the_share_of_groups_that_teach_nothing() -> None:
    assert zero_variance_fraction([group(0, [1, 1]), group(1, [0, 1])]) == 0.5


def test_an_error_is_described_with_its_causes_on_one_line() -> None:
    error = RewardError("reward failed")
    error.__cause__ = ValueError("two\nlines")
    assert describe_error(error) == "RewardError: reward failed <- ValueError: two lines"
