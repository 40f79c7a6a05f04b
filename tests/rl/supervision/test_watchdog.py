"""Who has waited too long for whom: pure decisions over a clock of one's own."""

from __future__ import annotations

import pytest

from whet.rl.supervision.watchdog import ENGINE, WaitTable, WatchdogConfig, seconds
from whet.system.cancellation import GRACE_S

CONFIG = WatchdogConfig(report_seconds=60, act_seconds=600, act_factor=10, first_seconds=3600)
GROUP = "group calculator"


@pytest.fixture
def waits() -> WaitTable:
    return WaitTable(CONFIG)


def verdicts(waits: WaitTable, now: float) -> list[str]:
    return [stall.verdict for stall in waits.overdue(now)]


def shown(waits: WaitTable, kind: str, took: float) -> None:
    waits.end(waits.begin(kind, "x", "y", 0), took)


def test_a_wait_is_told_of_once_after_a_minute_and_says_who_waits_for_whom(waits: WaitTable) -> None:
    waits.begin("batch", "the learner", "a batch of rollouts", 0)
    assert waits.overdue(59) == []
    (stall,) = waits.overdue(75)
    assert stall.describe() == "the learner has waited 75 s for a batch of rollouts"
    assert waits.overdue(100_000) == []


def test_a_wait_that_ended_is_never_told_of(waits: WaitTable) -> None:
    wait = waits.begin("batch", "the learner", "a batch", 0)
    waits.end(wait, 10)
    assert waits.overdue(100_000) == []


def test_what_has_always_taken_long_is_told_of_only_when_it_takes_twice_as_long(waits: WaitTable) -> None:
    shown(waits, "learn", 300)
    waits.begin("learn", "the run", "the learner", 1000)
    assert waits.overdue(1000 + 599) == []
    (stall,) = waits.overdue(1000 + 601)
    assert "the longest so far took 5 min" in stall.describe()


def test_a_deadline_is_a_multiple_of_the_slowest_so_far_with_a_floor_and_a_start(waits: WaitTable) -> None:
    assert waits.deadline(GROUP) == 3600
    shown(waits, GROUP, 2)
    assert waits.deadline(GROUP) == 600
    shown(waits, GROUP, 100)
    shown(waits, GROUP, 50)
    assert waits.deadline(GROUP) == 1000
    assert waits.deadline("group other") == 3600


def test_how_long_a_failure_took_says_nothing_about_what_is_usual(waits: WaitTable) -> None:
    waits.end(waits.begin(GROUP, "x", "y", 0), 5000, usual=False)
    assert waits.deadline(GROUP) == 3600


def test_past_its_deadline_a_wait_is_acted_on_and_given_up_where_that_does_not_end_it(waits: WaitTable) -> None:
    shown(waits, GROUP, 2)
    waits.begin(GROUP, "group 7", "environment calculator", 0, print)
    assert verdicts(waits, 61) == ["reported"]
    assert verdicts(waits, 601) == ["acted on"]
    assert verdicts(waits, 900) == []
    assert verdicts(waits, 1202 + GRACE_S) == ["given up"]
    assert verdicts(waits, 9000) == []


def test_a_wait_that_others_act_on_is_told_of_and_nothing_more(waits: WaitTable) -> None:
    waits.begin("batch", "the learner", "a batch", 0)
    assert verdicts(waits, 61) == ["reported"]
    assert verdicts(waits, 50_000) == []


def test_while_the_engine_answers_nobody_the_time_of_groups_stands_still(waits: WaitTable) -> None:
    shown(waits, GROUP, 2)
    shown(waits, ENGINE, 1)
    waits.begin(GROUP, "group 7", "environment calculator", 0, print)
    waits.begin(ENGINE, "rollouts", "the engine", 5, print)
    found = [stall.wait.kind for stall in waits.overdue(5 + 601)]
    assert found == [ENGINE]


def test_a_group_that_goes_on_is_neither_reported_nor_acted_on_however_long_it_takes(waits: WaitTable) -> None:
    shown(waits, GROUP, 2)
    wait = waits.begin(GROUP, "group 7", "environment calculator", 0, print)
    tokens = 0
    wait.progress = lambda: tokens
    found = []
    for now in range(60, 7200, 60):
        tokens += now <= 3600  # then its environment hangs
        found += [(now, stall.verdict) for stall in waits.overdue(now)]
    assert found[:2] == [(3600 + 120, "reported"), (3600 + 660, "acted on")]


def test_while_the_event_loop_stands_still_only_what_may_keep_it_is_judged(waits: WaitTable) -> None:
    waits.begin(GROUP, "group 7", "environment calculator", 0, print)
    waits.begin("learn", "the run", "the learner", 0, print, blocks=True)
    assert [stall.wait.kind for stall in waits.overdue(100, turned=0)] == ["learn"]
    waits.forgive(100)
    assert waits.overdue(150) == []


def test_time_since_the_event_loop_has_turned_does_not_make_a_group_late(waits: WaitTable) -> None:
    """It may have begun to stand still; whoever keeps it is interrupted, which says more than that a group is late."""
    shown(waits, GROUP, 2)
    waits.begin(GROUP, "group 7", "environment calculator", 0, print)
    waits.overdue(590)  # told of
    assert waits.overdue(605, turned=599) == []
    (stall,) = waits.overdue(605, turned=604)
    assert (stall.verdict, stall.waited) == ("acted on", 604)


def test_time_in_which_the_whole_process_was_suspended_is_nobodys(waits: WaitTable) -> None:
    waits.begin("learn", "the run", "the learner", 0, print, blocks=True)
    waits.forgive(100_000, everything=True)
    assert waits.overdue(100_050) == []


def test_an_environment_is_hopeless_when_two_groups_were_ended_and_none_ever_ended_by_itself(waits: WaitTable) -> None:
    waits.expired[GROUP] = 1
    assert not waits.hopeless(GROUP)
    waits.expired[GROUP] = 2
    assert waits.hopeless(GROUP)
    shown(waits, GROUP, 1)
    assert not waits.hopeless(GROUP)


def test_deadlines_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="act_seconds = 700 is more than first_seconds = 600"):
        WatchdogConfig(act_seconds=700, first_seconds=600)


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.5 s"), (75, "75 s"), (600, "10 min"), (9000, "2.5 h")])
def test_durations_read_well(value: float, text: str) -> None:
    assert seconds(value) == text
