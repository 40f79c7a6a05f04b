"""Groups ahead of the learner: how many, which make a batch, and which are too old."""

import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.errors import RewardError, TrainingError
from whet.rl.data.curriculum import DrawnTask, MixedCurriculum, Pool
from whet.rl.loop.group import Group, GroupFilter
from whet.rl.loop.rollout_buffer import Lead, RolloutBuffer
from whet.types import State


def group(
    place: int, task: DrawnTask, *, version: int = 0, rewards: tuple[float, ...] = (0, 1), failed: bool = False
) -> Group:
    trajectory = [{"tokens": {"policy_version": [[version, 3], [version + 1, 2]]}}]
    error = RewardError("no") if failed else None
    states = [State(reward=reward, error=error, trajectory=trajectory) for reward in rewards]
    return Group(place, task, f"env{task.environment}", states)


@pytest.mark.parametrize(
    ("level", "oversampling", "places"),
    [
        (0, 1.0, [4, 8, 12]),
        (1, 1.0, [8, 12, 16]),
        (2, 1.0, [12, 16, 20]),
        (1, 1.5, [10, 14, 18]),
        (1, 0.6, [7, 11, 15]),
    ],
)
def test_places_open_as_far_ahead_as_the_level_and_oversampling_allow(
    level: int, oversampling: float, places: list[int]
) -> None:
    lead = Lead(4, max_async_level=level, oversampling_factor=oversampling)
    assert [lead.slots(version) for version in range(3)] == places


@pytest.mark.parametrize(("oversampling", "places"), [(0.5, [4, 8]), (1.0, [4, 8]), (1.5, [6, 10])])
def test_before_a_batch_is_complete_only_its_own_places_open(oversampling: float, places: list[int]) -> None:
    lead = Lead(4, max_async_level=2, oversampling_factor=oversampling)
    assert [lead.first_slots(version) for version in range(2)] == places


@pytest.mark.parametrize(("oversampling", "in_flight"), [(0.5, 4), (1.0, 4), (1.5, 6)])
def test_no_more_groups_are_in_flight_than_a_batch_or_oversampling_says(oversampling: float, in_flight: int) -> None:
    backlog = RolloutBuffer(Lead(4, oversampling_factor=oversampling))
    version = 0
    for landed in range(20):
        while backlog.may_open(version):
            backlog.open(0)
        if version:  # the first batch has the engine to itself
            ahead = backlog.lead.slots(version) - landed
            assert backlog.opened - landed == min(in_flight, ahead)
        assert backlog.add(group(landed, DrawnTask(landed, 0, landed, 0)), version=version)
        version += backlog.take() is not None
    assert version == 5


def test_a_batch_takes_the_finished_groups_that_were_drawn_first_and_waits_for_nobody_who_is_late() -> None:
    backlog = RolloutBuffer(Lead(2))
    tasks = [DrawnTask(number, 0, number, 0) for number in range(4)]
    places = [backlog.open(0) for _ in tasks]
    for late_last in (2, 1):
        assert backlog.add(group(places[late_last], tasks[late_last]), version=0)
    taken = backlog.take()
    assert taken is not None
    assert [found.id for found in taken.groups] == [1, 2]
    assert backlog.take() is None
    assert backlog.missing == 2
    assert backlog.add(group(places[0], tasks[0]), version=1)
    assert backlog.add(group(places[3], tasks[3]), version=1)
    taken = backlog.take()
    assert taken is not None
    assert [found.id for found in taken.groups] == [0, 3]


def test_a_batch_is_taken_in_parts_which_together_have_its_mix_and_the_last_brings_what_else_was_attempted() -> None:
    backlog = RolloutBuffer(Lead(4, parts=2))
    environments = [0, 0, 0, 1, 0, 0, 0, 1]
    tasks = [DrawnTask(number, environment, number, 0) for number, environment in enumerate(environments)]
    places = [backlog.open(environment) for environment in environments]
    taken: list[list[int]] = []
    for number in (5, 0, 2, 6, 4, 1, 3, 7):
        assert backlog.add(group(places[number], tasks[number]), version=0)
        while (part := backlog.take()) is not None:
            taken.append([found.id for found in part.groups])
            assert (part.tally is not None) == (taken[-1] in ([1, 3], [7]))
    assert taken == [[0, 5], [1, 3], [2, 4, 6], [7]]  # the first batch waited for a group of environment 1


def test_what_an_unfinished_batch_has_taken_is_not_done_with() -> None:
    backlog = RolloutBuffer(Lead(2, parts=2))
    places = [backlog.open(0) for _ in range(2)]
    assert backlog.add(group(places[0], DrawnTask(0, 0, 0, 0)), version=0)
    part = backlog.take()
    assert part is not None
    assert part.tally is None
    assert [found.id for found in backlog.waiting()] == [0]
    assert backlog.add(group(places[1], DrawnTask(1, 0, 1, 0)), version=0)
    assert backlog.take() is not None
    assert backlog.waiting() == []


def test_a_batch_waits_for_the_environments_of_its_share() -> None:
    backlog = RolloutBuffer(Lead(2))
    for number, environment in enumerate([0, 1, 0, 1]):
        place = backlog.open(environment)
        if environment == 0:
            backlog.add(group(place, DrawnTask(number, 0, number, 0)), version=0)
    assert backlog.ready == 2
    assert backlog.missing == 1
    assert backlog.take() is None


@settings(deadline=None)
@given(
    st.lists(st.floats(0.1, 5), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from([0.5, 1.0, 1.5]),
    st.integers(1, 4),
    st.integers(0, 9999),
)
def test_whatever_finishes_first_every_window_of_batches_has_the_mix(
    weights: list[float], size: int, level: int, oversampling: float, parts: int, seed: int
) -> None:
    pools = [Pool(f"env{index}", 50, weight) for index, weight in enumerate(weights)]
    curriculum, backlog = (
        MixedCurriculum(pools, seed=0),
        RolloutBuffer(Lead(size, level, oversampling_factor=oversampling, max_off_policy_steps=99, parts=parts)),
    )
    chance = random.Random(seed)
    flying: list[Group] = []
    trained: list[Group] = []
    version = 0
    while version < 12:
        while backlog.may_open(version):
            task = curriculum.next_task()
            flying.append(group(backlog.open(task.environment), task, version=version))
        landed = flying.pop(chance.randrange(len(flying)))
        if chance.random() < 0.2:  # turned away: another task of the same environment
            again = curriculum.next_of(landed.task.environment)
            flying.append(group(landed.slot, again, version=version))
        else:
            assert backlog.add(landed, version)
        if (taken := backlog.take()) is not None:
            trained += taken.groups
            assert (taken.tally is not None) == (len(trained) % size == 0)
            version += taken.tally is not None
    assert len({found.id for found in trained}) == len(trained)
    total = sum(map(Fraction, weights))
    batches = [
        Counter(found.task.environment for found in trained[at : at + size]) for at in range(0, len(trained), size)
    ]
    for first in range(len(batches)):
        window: Counter[int] = Counter()
        for count, batch in enumerate(batches[first:], start=1):
            window += batch
            for index, weight in enumerate(weights):
                # From the start within one group; a window is the difference of two such counts.
                assert abs(window[index] - count * size * Fraction(weight) / total) < (1 if first == 0 else 2)


def test_a_group_older_than_allowed_is_turned_away_or_taken_out_again() -> None:
    backlog = RolloutBuffer(Lead(1, max_off_policy_steps=2))
    first, second = backlog.open(0), backlog.open(0)
    assert not backlog.add(group(first, DrawnTask(0, 0, 0, 0), version=1), version=4)
    assert backlog.add(group(second, DrawnTask(1, 0, 1, 0), version=1), version=3)
    assert backlog.expire(version=3) == []
    (old,) = backlog.expire(version=4)
    assert (old.id, old.slot) == (1, second)
    assert backlog.ready == 0
    assert backlog.group_filter.tally.rejected == {"too old": 2}


def test_groups_whose_rewards_are_alike_are_replaced_and_the_best_fills_the_place_in_the_end() -> None:
    backlog = RolloutBuffer(Lead(1), GroupFilter(min_variance=0.1, max_attempts=2))
    place = backlog.open(0)
    assert not backlog.add(group(place, DrawnTask(0, 0, 0, 0), rewards=(0.2, 0.4)), version=0)
    assert backlog.add(group(place, DrawnTask(1, 0, 1, 0), rewards=(1, 1)), version=0)
    taken = backlog.take()
    assert taken is not None
    assert taken.tally is not None
    assert [found.id for found in taken.groups] == [0]
    assert taken.tally.rejected == {"too little variance": 2}


def test_a_group_kept_aside_for_its_variance_never_fills_a_place_when_it_has_become_too_old() -> None:
    backlog = RolloutBuffer(Lead(1, max_off_policy_steps=2), GroupFilter(min_variance=0.1, max_attempts=2))
    place = backlog.open(0)
    assert not backlog.add(group(place, DrawnTask(0, 0, 0, 0), rewards=(0.2, 0.4)), version=0)
    assert backlog.add(group(place, DrawnTask(1, 0, 1, 0), rewards=(1, 1), version=3), version=3)
    taken = backlog.take()
    assert taken is not None
    assert [found.id for found in taken.groups] == [1], "the best that was tried is three versions old"


def test_a_place_whose_group_aside_became_too_old_is_attempted_until_one_is_without_errors() -> None:
    group_filter = GroupFilter(min_variance=0.1, max_attempts=3, max_errored_groups=3)
    backlog = RolloutBuffer(Lead(1, max_off_policy_steps=2), group_filter)
    place = backlog.open(0)
    assert not backlog.add(group(place, DrawnTask(0, 0, 0, 0), rewards=(0.2, 0.4)), version=0)
    for number in (1, 2):  # as many attempts as there may be, but they were not all errors
        assert not backlog.add(group(place, DrawnTask(number, 0, number, 0), version=3, failed=True), version=3)
    assert backlog.add(group(place, DrawnTask(3, 0, 3, 0), rewards=(1, 1), version=3), version=3)
    place = backlog.open(0)
    for number in (4, 5):
        assert not backlog.add(group(place, DrawnTask(number, 0, number, 0), version=3, failed=True), version=3)
    with pytest.raises(TrainingError, match="env0: 3 groups in a row"):
        backlog.add(group(place, DrawnTask(6, 0, 6, 0), version=3, failed=True), version=3)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from([0.0, 0.1, 1.0, None])), max_size=60))
def test_whatever_lands_when_no_group_of_a_batch_is_older_than_allowed(landings: list[tuple[int, int, float]]) -> None:
    lead = Lead(2, max_off_policy_steps=2)
    backlog, version = RolloutBuffer(lead, GroupFilter(min_variance=0.2, max_attempts=3)), 0
    places = [backlog.open(0) for _ in range(4)]
    for number, (later, age, spread) in enumerate(landings):
        version += later
        places += [old.slot for old in backlog.expire(version)]
        sampled_by = max(0, version - age)
        rewards = (0.0, spread or 0.0)
        landed = group(
            places[0], DrawnTask(number, 0, number, 0), version=sampled_by, rewards=rewards, failed=spread is None
        )
        try:
            places += [backlog.open(0)] if backlog.add(landed, version) else [places[0]]
        except TrainingError:
            return
        del places[0]
        part = backlog.take()
        for taken in part.groups if part is not None else ():
            assert not lead.too_old(taken.oldest_version, version)


def test_nothing_but_errors_stops_the_run() -> None:
    backlog = RolloutBuffer(Lead(1), GroupFilter(max_errored_groups=2))
    place = backlog.open(0)
    assert not backlog.add(group(place, DrawnTask(0, 0, 0, 0), failed=True), version=0)
    with pytest.raises(TrainingError, match="env0: 2 groups in a row"):
        backlog.add(group(place, DrawnTask(1, 0, 1, 0), failed=True), version=0)


def test_what_was_turned_away_is_counted_with_the_next_batch_and_then_forgotten() -> None:
    backlog = RolloutBuffer(Lead(1))
    first, second = backlog.open(0), backlog.open(0)
    backlog.add(group(first, DrawnTask(0, 0, 0, 0), failed=True), version=0)
    backlog.add(group(first, DrawnTask(1, 0, 1, 0)), version=0)
    backlog.add(group(second, DrawnTask(2, 0, 2, 0)), version=0)
    tallies = [part.tally for part in (backlog.take(), backlog.take()) if part is not None and part.tally is not None]
    assert [(tally.errored_rollouts, tally.replaced) for tally in tallies] == [(2, 1), (0, 0)]
