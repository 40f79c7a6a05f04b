"""Rollouts under way have lengths, and two shares say whether the long ones are trained."""

from typing import Any

import pytest

from whet.rl.data.curriculum import DrawnTask
from whet.rl.data.metrics import Lengths, length_metrics, lengths_of
from whet.rl.loop.group import Group


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_tokens_of_finished_turns_count_and_those_of_a_turn_under_way_are_told_from_its_time() -> None:
    clock = Clock()
    lengths = Lengths(clock)
    lengths.follow(["a", "b", "c"])
    first = lengths.ask("a", 50)
    clock.now = 2.0
    lengths.end(first, 20)  # ten a second
    assert lengths.of("abc") == [20.0], "b and c have not begun"
    lengths.ask("a", 50)
    refused = lengths.ask("b", 50)
    clock.now = 3.0
    lengths.end(refused, None)
    assert lengths.of("abc") == [30.0, 0.0]
    clock.now = 60.0
    assert lengths.of("a") == [70.0], "no turn has more than it may have"
    lengths.forget("abc")
    assert lengths.of("abc") == []


def test_of_rollouts_that_nobody_follows_nothing_is_kept() -> None:
    lengths = Lengths(Clock())
    for name in (None, "evaluated"):
        assert lengths.ask(name, 50) is None
        lengths.end(None, 7)
    assert lengths == Lengths(lengths.clock)


def group(*sizes: int) -> Group:
    states: list[Any] = [{"trajectory": [{"tokens": {"completion_ids": [7] * size}}] * 2} for size in sizes]
    return Group(0, DrawnTask(0, 0, 0, 0), "e", states)


def test_long_is_what_has_more_than_twice_the_tokens_of_the_median_rollout_that_was_drawn() -> None:
    groups = [group(5, 6, 5), group(4, 5, 20)]
    assert lengths_of(groups) == [10, 12, 10, 8, 10, 40]
    share = {"rollouts/long_drawn_frac": pytest.approx(1 / 6), "rollouts/long_trained_frac": pytest.approx(1 / 6)}
    assert length_metrics(groups, []) == share
    lost = length_metrics(groups[:1], [40.0, 50.0])
    assert lost == {"rollouts/long_drawn_frac": pytest.approx(0.4), "rollouts/long_trained_frac": 0.0}
