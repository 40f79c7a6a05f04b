"""The progress of a search as plain lines, few enough for a log."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from whet.display.live import Output
from whet.gepa.run import Several
from whet.gepa.types import Confirmation, SearchObserver
from whet.gepa.view import SearchView


@pytest.fixture
def printed() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def lines(printed: io.StringIO, clock: Any) -> SearchView:
    return SearchView(
        "reverse-text with whet/tiny", Output(Console(file=printed, width=40, highlight=False), clock=clock)
    )


@pytest.fixture
def told(lines: SearchView, player: Any) -> Any:
    return player.Told(lines)


def test_lines_at_start_each_tenth_and_each_decision(
    lines: SearchView, told: Any, printed: io.StringIO, player: Any
) -> None:
    lines.planned(player.plan(100))
    lines.phase("baseline", "", 10)
    for example in range(10):
        told.call(0, example, 0.5)
    told.decide(0, "seed", 0.5)
    told.propose(1, 0, "Think.")
    lines.phase("race", "", 10)
    for example in range(10):
        told.call(1, example, 1.0)
    told.decide(1, "accepted", 1.0, "better on all examples")
    lines.confirmed(Confirmation(10, 0.5, 0.9, 0.4, 0.2, 0.6, True))
    assert printed.getvalue().splitlines() == [
        "reverse-text with whet/tiny: at most 100 calls",
        "10/100 calls  the seed prompt on validation examples  10/10  seed: 0.500",
        "candidate 0: the seed (0.500 on validation)",
        "20/100 calls  race on validation examples  10/10  candidate 1: 1.000  best the seed, 0.500 on validation",
        "candidate 1: accepted: better on all examples (1.000 on validation)",
        "confirmed: held-out reward 0.900, the seed 0.500: +0.400 (95 % interval +0.200 to +0.600): better",
    ]


def test_the_picture_has_what_models_run_here_are_sampling(lines: SearchView, player: Any) -> None:
    lines.planned(player.plan(100))
    Several(SearchObserver(), lines).watch(lambda: "12 tokens so far in 1 unfinished answer, 12 in the longest")
    file = io.StringIO()
    Console(file=file, width=100).print(lines.draw(100, 20, ""))
    assert "sampling   12 tokens so far in 1 unfinished answer, 12 in the longest" in file.getvalue()


def test_slow_calls_are_told_of_once_a_minute(
    lines: SearchView, told: Any, printed: io.StringIO, player: Any, clock: Any
) -> None:
    lines.planned(player.plan(1000))
    for _ in range(9):
        clock.now += 30.0
        told.call(0, 0, 1.0)
    assert [line.split()[0] for line in printed.getvalue().splitlines()[1:]] == ["2/1000", "4/1000", "6/1000", "8/1000"]


def test_what_the_log_of_an_earlier_process_answers_is_one_line(
    lines: SearchView, told: Any, printed: io.StringIO, player: Any
) -> None:
    lines.planned(player.plan(100))
    for example in range(30):
        told.call(0, example, 0.5, replayed=True)
    told.decide(0, "seed", 0.5)
    told.propose(1, 0, "Think.")
    told.call(1, 0, 0.0, replayed=True)
    told.decide(1, "rejected", None, "worse")
    assert len(printed.getvalue().splitlines()) == 1
    told.propose(2, 0, "Think twice.")
    told.call(2, 0, 1.0)
    told.decide(2, "rejected", None, "worse too")
    assert printed.getvalue().splitlines()[1:] == [
        "from the log: 31 calls, 2 candidates decided on, not paid for again",
        "candidate 2: rejected: worse too",
    ]


def test_notes_are_told_at_once_and_nothing_hostile_gets_through(
    lines: SearchView, told: Any, printed: io.StringIO, player: Any
) -> None:
    lines.planned(player.plan(100))
    lines.note("the endpoint rests\x1b]0;owned\x07\nanother [bold]line")
    told.propose(1, 0, "x")
    told.decide(1, "rejected", None, "\x1b[31mworse\u202e")
    shown = printed.getvalue()
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\nanother [bold]line\n" in shown
