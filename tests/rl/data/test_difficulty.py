"""Tasks that are too easy or too hard rest, and a fixed share of each kind comes back."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.rl.data.curriculum import DifficultyRule, DrawnTask, MixedCurriculum, Pool


def curriculum(size: int = 20, **rule: float) -> MixedCurriculum:
    return MixedCurriculum([Pool("a", size)], seed=0, rule=DifficultyRule(**rule))


def attempt(chosen: MixedCurriculum, rewards: dict[int, float], draws: int) -> list[DrawnTask]:
    """Draw tasks one after the other, each scored with its mean reward before the next."""
    tasks = []
    for _ in range(draws):
        task = chosen.next_task()
        chosen.observe(task, rewards.get(task.index, 0.5))
        tasks.append(task)
    return tasks


@pytest.mark.parametrize(("mean", "rests"), [(1.0, True), (0.8, True), (0.79, False), (0.1, True), (0.11, False)])
def test_a_mean_at_a_threshold_or_beyond_it_lets_a_task_rest(mean: float, rests: bool) -> None:
    chosen = curriculum(easy_threshold=0.8, hard_threshold=0.1)
    first = chosen.next_task()
    chosen.observe(first, mean)
    later = [chosen.next_task().index for _ in range(60)]
    assert (first.index not in later) == rests


def test_without_a_rule_no_task_rests() -> None:
    plain = MixedCurriculum([Pool("a", 5)], seed=0)
    assert len({task.index for task in attempt(plain, dict.fromkeys(range(5), 1.0), 5)}) == 5
    assert len({task.index for task in attempt(plain, dict.fromkeys(range(5), 1.0), 5)}) == 5


def test_a_fixed_share_of_the_draws_are_tasks_that_rest() -> None:
    rewards = {index: 1.0 if index < 8 else 0.0 if index < 12 else 0.5 for index in range(40)}
    chosen = curriculum(40, easy_fraction=0.25, hard_fraction=0.125)
    attempt(chosen, rewards, 200)  # every task has been seen
    kinds = Counter(
        "easy" if task.index < 8 else "hard" if task.index < 12 else "normal" for task in attempt(chosen, rewards, 80)
    )
    assert kinds == {"easy": 20, "hard": 10, "normal": 50}


def test_of_the_tasks_that_rest_the_one_that_rested_longest_comes_back_first() -> None:
    rewards = dict.fromkeys(range(3), 1.0)
    chosen = curriculum(12, easy_fraction=0.5)
    attempt(chosen, rewards, 60)
    back = [task.index for task in attempt(chosen, rewards, 24) if task.index < 3]
    assert len(back) == 12
    assert back[:3] * 4 == back


def test_a_task_that_was_forgotten_is_normal_again() -> None:
    chosen = curriculum(4, easy_fraction=0.5)
    task = chosen.next_task()
    chosen.observe(task, 1.0)
    assert chosen.state_dict()["resting"][0]["resting"] == [[task.index, "easy"]]
    chosen.observe(task, 0.5)
    assert chosen.state_dict()["resting"][0]["resting"] == []


def test_where_every_task_rests_the_hard_ones_are_tried_first() -> None:
    rewards = {0: 0.0, 1: 1.0, 2: 0.0, 3: 1.0}
    chosen = curriculum(4)
    attempt(chosen, rewards, 4)
    assert {task.index for task in attempt(chosen, rewards, 10)} == {0, 2}


@given(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=80), st.integers(0, 79))
def test_a_resumed_curriculum_goes_on_where_it_was(means: list[float], at: int) -> None:
    rule = DifficultyRule(easy_fraction=0.2, hard_fraction=0.3)
    pools = [Pool("a", 5, 2.0), Pool("b", 3)]
    whole, resumed = (MixedCurriculum(pools, seed=1, rule=rule) for _ in range(2))
    for number, mean in enumerate(means):
        if number == at:
            resumed.load_state_dict(whole.state_dict())
        task = whole.next_task()
        whole.observe(task, mean)
        if number >= at:
            assert resumed.next_task() == task
            resumed.observe(task, mean)
