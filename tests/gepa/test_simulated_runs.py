"""Over many runs that are killed and gone on with: no budget is exceeded, and nothing finished is paid for again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from simulated import World, run

MOST_KILLS = 4


def worlds(number: int) -> list[Callable[[], World]]:
    return [
        lambda seed=seed: World(  # type: ignore[misc]
            seed,
            max_calls=90 + seed % 60,
            reserved=20,
            concurrency=1 + seed % 16,
            failing=0.05 if seed % 4 == 0 else 0.0,
        )
        for seed in range(number)
    ]


def check(make: Callable[[], World]) -> int:
    """How often the run was killed."""
    world = make()
    told, kills = run(world, MOST_KILLS)
    assert sum(world.begun.values()) <= world.max_calls
    assert world.repeated == 0
    assert world.most_in_flight <= world.concurrency
    if not world.failing:
        undisturbed, _ = run(make(), 0)
        assert is_same_search(told, undisturbed)
    return kills


def is_same_search(told: list[Any], undisturbed: list[Any]) -> bool:
    """Whether a killed run went the same way, as far as the calls that were lost have left it a way to go."""
    searched, whole = ([one for one in rounds if one[0] != "confirmation"] for rounds in (told, undisturbed))
    return searched == whole[: len(searched)]


def test_killed_runs_keep_the_budget_and_repeat_no_finished_call() -> None:
    assert sum(map(check, worlds(24))) > 24, "the runs were hardly killed at all"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_thousand_killed_runs_do() -> None:
    assert sum(map(check, worlds(1000))) > 1000
