"""Groups and histograms of the rollouts of an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from whet.records.heads import Filter
from whet.records.sources import RunSource
from whet.records.store import Store
from whet.rl.storage.run_directory import write_step


def row(group: str, reward: Any, environment: str = "a", **more: Any) -> dict[str, Any]:
    return {"group": group, "environment": environment, "example_id": 0, "prompt": group, "reward": reward, **more}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    rows = [row("1", 0.0), row("1", 1.0), row("2", 0.5, "b"), row("2", None, "b", error="Bad"), row("3", 1e400)]
    write_step(tmp_path / "rollouts", 1, rows)
    write_step(tmp_path / "rollouts", 2, [row("1", 2.0)])
    opened = Store(RunSource(tmp_path, "training", tmp_path / "rollouts"))
    assert opened.poll(5).rollouts == 6
    return opened


def test_groups_are_those_of_a_step(store: Store) -> None:
    first = store.groups(Filter(step=1), 0, 2)
    assert [(one.first, one.rollouts, one.mean_reward, one.failed) for one in first] == [(0, 2, 0.5, 0), (2, 2, 0.5, 1)]
    assert [one.question for one in first] == ["1", "2"]
    assert [one.first for one in store.groups(Filter(step=1), 2, 5)] == [4]
    assert [one.rollouts for one in store.groups(Filter(step=2), 0, 5)] == [1]


def test_histograms_count_finite_values_by_environment(store: Store) -> None:
    found = store.histogram("reward", Filter(step=1), 4)
    assert found is not None
    assert (found.low, found.high) == (0.0, 1.0)
    assert found.counts == {"a": [1, 0, 0, 1], "b": [0, 0, 1, 0]}
    assert found.means == {"a": 0.5, "b": 0.5}
    same = store.histogram("reward", Filter(step=2), 4)
    assert same is not None
    assert same.counts == {"a": [1, 0, 0, 0]}
    assert store.histogram("advantage", Filter(), 4) is None
