"""Which trial of a sweep comes next: by numbers and scores alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

from whet.rl.sweep.config import SweepConfig
from whet.rl.sweep.search import SweepTrial, promotable, proposal

LISTS = {"learning_rate": [1e-4, 1e-3, 1e-2], "lora.rank": [4, 8], "max_steps": 9}


def config(**keys: Any) -> SweepConfig:
    return SweepConfig.model_validate({"vary": LISTS, **keys})


def proposals(sweep: SweepConfig, seed: int = 0, score: Any = lambda values: None) -> list[dict[str, Any]]:
    """All that is proposed, where each trial gets its score before the next."""
    trials: list[SweepTrial] = []
    while (values := proposal(sweep, seed, trials)) is not None:
        trials.append(SweepTrial(len(trials), values, [9], 8, scores=[score(values)]))
    return [trial.values for trial in trials]


def test_a_grid_has_every_combination_in_order() -> None:
    found = proposals(config())
    assert [(one["learning_rate"], one["lora.rank"]) for one in found] == [
        (1e-4, 4), (1e-4, 8), (1e-3, 4), (1e-3, 8), (1e-2, 4), (1e-2, 8),
    ]  # fmt: skip
    assert all(one["max_steps"] == 9 for one in found)
    assert proposals(config(trials=4)) == found[:4]


@pytest.mark.parametrize("method", ["random", "asha"])
def test_lists_are_tried_in_an_order_of_the_seed_and_none_twice(method: str) -> None:
    first, again, other = (proposals(config(method=method), seed) for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(map(str, first)) == sorted(map(str, proposals(config())))


RANGES = {
    "learning_rate": {"low": 1e-5, "high": 1e-1, "log": True},
    "lora.rank": {"low": 2, "high": 64},
    "x": [[1, 2], 3],
}


@pytest.mark.parametrize("method", ["random", "tpe", "asha"])
def test_values_of_a_range_repeat_with_the_seed_and_the_scores(method: str) -> None:
    sweep = config(vary=RANGES, method=method, trials=8)

    def score(values: Any) -> float:
        return -abs(values["lora.rank"] - 16.0)

    found = proposals(sweep, 3, score)
    assert found == proposals(sweep, 3, score)
    assert len(found) == 8
    for one in found:
        assert 1e-5 <= one["learning_rate"] <= 1e-1
        assert isinstance(one["lora.rank"], int)
        assert 2 <= one["lora.rank"] <= 64
        assert one["x"] in ([1, 2], 3)
    assert len({one["learning_rate"] for one in found}) == 8


def test_tpe_goes_by_the_scores() -> None:
    sweep = config(vary={"learning_rate": {"low": 0.0, "high": 1.0}}, method="tpe", trials=40)
    found = [one["learning_rate"] for one in proposals(sweep, 0, lambda values: -abs(values["learning_rate"] - 0.7))]
    late = found[20:]
    assert sum(abs(one - 0.7) < 0.15 for one in late) > len(late) / 2, "a uniform draw has 30 % there"


def trials_of(*scores: list[float | None]) -> list[SweepTrial]:
    return [SweepTrial(number, {}, [1, 3, 9], 8, scores=list(each)) for number, each in enumerate(scores)]


def test_the_best_third_of_a_rung_goes_on_the_highest_rung_first() -> None:
    assert promotable(trials_of([0.1], [0.9]), 3) is None
    assert promotable(trials_of([0.1], [0.9], [0.5]), 3).number == 1  # type: ignore[union-attr]
    assert promotable(trials_of([0.1], [0.9, 0.9], [0.5]), 3) is None
    three = trials_of([0.7, 0.1], [0.9, 0.2], [0.8, 0.3], *[[0.0]] * 6)
    assert promotable(three, 3).number == 2  # type: ignore[union-attr]


def test_trials_that_run_failed_or_ended_by_themselves_do_not_go_on() -> None:
    for state in ({"running": True}, {"failed": True}, {"note": "ended by itself after step 1"}):
        trials = trials_of([0.1], [0.9], [0.5])
        for name, value in state.items():
            setattr(trials[1], name, value)
        assert promotable(trials, 3) is None
    assert promotable(trials_of([None], [None], [None]), 3) is None


@pytest.mark.parametrize("seed", range(5))
def test_halving_ends_with_the_best_of_27_for_a_fraction_of_the_rollouts(seed: int) -> None:
    quality = random.Random(seed).sample(range(27), 27)
    trials: list[SweepTrial] = []
    while True:
        trial = promotable(trials, 3)
        if trial is None and len(trials) < 27:
            trial = SweepTrial(len(trials), {}, [1, 3, 9, 27], 1)
            trials.append(trial)
        if trial is None:
            break
        trial.steps = trial.targets[len(trial.scores)]
        trial.scores.append(float(quality[trial.number]))
    assert [quality[trial.number] for trial in trials if trial.is_whole][-1] == 26
    assert sum(trial.rollouts for trial in trials) <= 27 * 27 / 3
