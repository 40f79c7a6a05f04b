"""The order of tasks: an exact mix of environments, every task once an epoch, and a state that resumes."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import RunError
from whet.rl.data.curriculum import MixedCurriculum, Pool

pools = st.lists(st.floats(0.05, 20), min_size=1, max_size=6).map(
    lambda weights: [Pool(f"env{i}", size=7 + i, weight=w) for i, w in enumerate(weights)]
)


@given(pools, st.integers(1, 300))
def test_after_any_number_of_tasks_every_environment_is_within_one_of_its_share(pools: list[Pool], n: int) -> None:
    curriculum = MixedCurriculum(pools, seed=0)
    total = sum(pool.weight for pool in pools)
    drawn: Counter[int] = Counter()
    for count in range(1, n + 1):
        drawn[curriculum.next_task().environment] += 1
        for index, pool in enumerate(pools):
            assert abs(drawn[index] - count * pool.weight / total) < 1 + 1e-9


def test_every_task_comes_once_an_epoch_and_epochs_are_shuffled_differently() -> None:
    curriculum = MixedCurriculum([Pool("a", 10)], seed=3)
    first = [curriculum.next_task() for _ in range(10)]
    second = [curriculum.next_task() for _ in range(10)]
    assert sorted(task.index for task in first) == sorted(task.index for task in second) == list(range(10))
    assert [task.index for task in first] != [task.index for task in second]
    assert {task.epoch for task in first} == {0}
    assert {task.epoch for task in second} == {1}


def test_a_replacement_does_not_change_the_mix() -> None:
    plain = MixedCurriculum([Pool("a", 5), Pool("b", 5)], seed=0)
    replaced = MixedCurriculum([Pool("a", 5), Pool("b", 5)], seed=0)
    order = []
    for _ in range(20):
        order.append(replaced.next_task().environment)
        replaced.next_of(0)
    assert order == [plain.next_task().environment for _ in range(20)]


@given(pools, st.integers(0, 60), st.integers(1, 60), st.integers(0, 9))
def test_a_resumed_curriculum_goes_on_where_it_was(pools: list[Pool], before: int, after: int, seed: int) -> None:
    whole = MixedCurriculum(pools, seed=seed)
    for _ in range(before):
        whole.next_task()
    resumed = MixedCurriculum(pools, seed=seed)
    resumed.load_state_dict(whole.state_dict())
    assert [whole.next_task() for _ in range(after)] == [resumed.next_task() for _ in range(after)]


def test_no_two_draws_have_the_same_number() -> None:
    curriculum = MixedCurriculum([Pool("a", 3), Pool("b", 3)], seed=0)
    drawn = [curriculum.next_task() if i % 3 else curriculum.next_of(1) for i in range(20)]
    assert [task.number for task in drawn] == list(range(20))


def test_the_seed_decides_the_order() -> None:
    def order(seed: int) -> list[int]:
        curriculum = MixedCurriculum([Pool("a", 50)], seed=seed)
        return [curriculum.next_task().index for _ in range(50)]

    assert order(1) == order(1) != order(2)


def test_other_environments_than_the_checkpoints_are_refused_by_name() -> None:
    state = MixedCurriculum([Pool("a", 5)], seed=0).state_dict()
    with pytest.raises(RunError, match=r"a \(5 tasks\).*a \(6 tasks\)"):
        MixedCurriculum([Pool("a", 6)], seed=0).load_state_dict(state)
