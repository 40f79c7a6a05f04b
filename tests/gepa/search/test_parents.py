"""Which candidate is changed next; see `whet.gepa.search.search`."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

from whet.gepa.search.search import LikelyBest


def drawn(*rewards, seed=0, times=300):
    """How often each of some candidates, by their validation rewards, becomes a parent."""
    state = SimpleNamespace(prog_candidate_val_subscores=[dict(enumerate(of)) for of in rewards])
    selector = LikelyBest(seed)
    return Counter(selector.select_candidate_idx(state) for _ in range(times))


def test_a_candidate_that_is_clearly_ahead_is_the_parent_almost_always():
    assert drawn([0.0] * 40 + [1.0] * 10, [0.0] * 10 + [1.0] * 40)[1] > 295


def test_of_two_that_are_close_both_are():
    counts = drawn([1.0] * 25 + [0.0] * 25, [0.0] * 25 + [1.0] * 25)
    assert min(counts[0], counts[1]) > 100


def test_of_equals_the_later_is():
    assert drawn([1.0, 0.0], [1.0, 0.0]) == {1: 300}


def test_the_draws_depend_on_the_seed_alone():
    rewards = [1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]
    assert drawn(*rewards, seed=1, times=40) == drawn(*rewards, seed=1, times=40)
    assert drawn(*rewards, seed=1, times=40) != drawn(*rewards, seed=2, times=40)
