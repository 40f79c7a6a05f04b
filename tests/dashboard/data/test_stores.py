"""Which stores of rollouts are open."""

from __future__ import annotations

import pytest

from whet.dashboard.data import stores
from whet.dashboard.data.rollouts import RolloutQuery, rollout_page
from whet.dashboard.data.stores import Stores
from whet.dashboard.folders import FolderLibrary
from whet.dashboard.library import RunQuery

from ..conftest import Runs, rollout


def test_few_stores_are_open_and_numbers_stay_when_one_is_opened_again(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MOST_OPEN", 2)
    for name in "abc":
        runs.evaluation([rollout(example, 1.0) for example in range(3)], name)
    opened = Stores()
    pages = []
    found = FolderLibrary([runs.folder]).runs(None, RunQuery()).items
    for run in [*found, *found]:
        with opened.use(run) as store:
            pages.append(rollout_page(store, RolloutQuery()))
        assert opened.open <= 2
    assert [page["generation"] for page in pages[:3]] == [page["generation"] for page in pages[3:]]
    assert [len(page["items"]) for page in pages] == [3] * 6
    with opened.use(found[0]) as store:
        opened.close()  # what is in use stays
        assert rollout_page(store, RolloutQuery())["totals"]["rollouts"] == 3
    assert opened.open == 0


def test_stores_that_are_not_used_are_closed(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "IDLE_SECONDS", 0.0)
    runs.evaluation([rollout(0, 1.0)])
    opened = Stores()
    (run,) = FolderLibrary([runs.folder]).runs(None, RunQuery()).items
    with opened.use(run):
        pass
    timer = opened.timer
    while timer is not None:
        timer.join()
        timer = opened.timer
    assert opened.open == 0
