"""What the keys of a list mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from whet.records.heads import Filter, Sort
from whet.records.listing import Listing, Search
from whet.records.store import open_store

Fixture = Callable[..., Any]


@pytest.fixture
def listing(evaluation: Fixture, rollout: Fixture) -> Listing:
    """Six rollouts of two tasks, as they stand in the file."""
    return Listing(open_store(evaluation([rollout(number // 3, number / 5) for number in range(6)])))


def test_the_next_match_goes_round_the_list_in_its_order(listing: Listing) -> None:
    listing.search = Search("x", matches={1, 4})
    listing.sort = Sort("reward", descending=True)
    listing.take(listing.load())
    assert listing.number == 0  # kept, though it is the last one now
    for expected in (4, 1, 4):
        listing.number = listing.next_match(1)
        assert listing.number == expected
    assert listing.next_match(-1) == 1


def test_current_rollout_outside_the_filter_becomes_the_first(listing: Listing) -> None:
    listing.number = 1
    listing.next_reward_filter()
    listing.take(listing.load())
    assert [head.reward for head in listing.heads] == [0.6, 0.8, 1.0]
    assert listing.number == 3


def test_rewards_are_passed_from_the_threshold_on_and_failed_below_it(listing: Listing) -> None:
    listing.next_reward_filter()
    assert [head.reward for head in listing.load()[0]] == [0.6, 0.8, 1.0]
    listing.next_reward_filter()
    assert [head.reward for head in listing.load()[0]] == [0.0, 0.2, 0.4]
    listing.next_reward_filter()
    assert listing.filter == Filter()


def test_the_list_ends_at_both_ends(listing: Listing) -> None:
    assert (listing.step(-1), listing.step(1)) == (None, 1)
    listing.number = 5
    assert (listing.step(-1), listing.step(1)) == (4, None)


def test_only_a_group_and_then_all_again(listing: Listing) -> None:
    listing.number = 4
    listing.toggle_group()
    assert list(listing.load()[0].numbers) == [3, 4, 5]
    listing.toggle_group()
    assert len(listing.load()[0]) == 6
