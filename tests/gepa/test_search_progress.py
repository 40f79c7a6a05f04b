"""What is known of a search while it runs, as data."""

from __future__ import annotations

from typing import Any

import pytest

from whet.gepa.progress import RATE_CALLS, SearchProgress


@pytest.fixture
def progress(clock: Any) -> SearchProgress:
    return SearchProgress("reverse-text with whet/tiny", clock)


@pytest.fixture
def told(progress: SearchProgress, player: Any) -> Any:
    return player.Told(progress)


def test_calls_are_counted_by_candidate_and_phase(progress: SearchProgress, told: Any) -> None:
    progress.phase("minibatch", "", 4)
    told.propose(1, 0, "Think.")
    for candidate, outcome in ((0, 1.0), (0, 0.0), (1, 1.0), (1, "ModelError")):
        told.call(candidate, 3, outcome)
    assert progress.current is not None
    assert progress.current.done == 4
    assert [tally.mean for tally in progress.current.tallies.values()] == [0.5, 0.5]
    assert progress.spent == 4
    assert progress.errors == 1
    progress.phase("race", "", 10)
    assert progress.current.done == 0


def test_a_proposal_keeps_its_rewards_over_phases_until_it_is_decided_on(progress: SearchProgress, told: Any) -> None:
    told.propose(1, 0, "Think.")
    for phase in ("minibatch", "race"):
        progress.phase(phase, "", 1)  # type: ignore[arg-type]
        told.call(1, 0, 1.0)
    proposal = progress.proposal
    assert proposal is not None
    assert proposal.tally.calls == 2
    told.decide(1, "rejected", None)
    assert progress.proposal is None


def test_best_is_the_earliest_accepted_candidate_with_the_highest_mean(progress: SearchProgress, told: Any) -> None:
    assert progress.best is None
    told.decide(0, "seed", 0.5)
    told.propose(1, 0, "a")
    told.decide(1, "accepted", 0.7)
    told.propose(2, 0, "b")
    told.decide(2, "rejected", 0.9)
    told.propose(3, 1, "c")
    told.decide(3, "accepted", 0.7)
    assert progress.best is not None
    assert progress.best.number == 1
    assert (progress.count("accepted"), progress.count("rejected")) == (2, 1)


def test_the_speed_is_that_of_the_latest_calls_and_falls_while_nothing_comes(
    progress: SearchProgress, told: Any, clock: Any, player: Any
) -> None:
    progress.planned(player.plan(200))
    for _ in range(2 * RATE_CALLS):
        clock.now += 0.5
        told.call(0, 0, 1.0)
    assert progress.rate == pytest.approx(2.0)
    assert progress.remaining == pytest.approx((200 - 2 * RATE_CALLS) / 2.0)
    clock.now += 1000
    rate = progress.rate
    assert rate is not None
    assert rate < 0.1


def test_calls_that_a_log_answers_tell_no_speed(progress: SearchProgress, told: Any, clock: Any) -> None:
    for _ in range(100):
        told.call(0, 0, 1.0, replayed=True)
    assert progress.replaying
    clock.now += 10
    assert progress.rate is None
    told.call(0, 0, 1.0)
    assert not progress.replaying
    assert (progress.spent, progress.replayed) == (101, 100)
