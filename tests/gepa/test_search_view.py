"""The live view of a search on a real (pseudo-)terminal: what it shows, what keys do, how the terminal is left."""

from __future__ import annotations

import re
import signal
import termios
from collections.abc import Callable
from typing import Any

import pytest

Play = Callable[..., Any]
WHOLE = re.compile(r"reverse-text with whet/tiny.*q stop", re.DOTALL)
BEGUN = (
    "plan 100",
    "phase baseline 10",
    *(f"call 0 {example} {example % 2}" for example in range(10)),
    "decided 0 seed 0.5",
    "proposed 1 0 You reverse texts.|Think first.|Answer with the whole text reversed.",
    "phase minibatch 3 0",
    "call 0 1 0",
    "phase minibatch 3 1",
    "call 1 1 1",
)
ACCEPTED = ("decided 1 accepted 0.7 better on 4 of 10 examples", "proposed 2 1 Do nothing.", "phase minibatch 6")
HOSTILE = "\x1b]0;owned\x07\x1b[31m[blink]red\u202e"


def whole(*patterns: str) -> re.Pattern[str]:
    """A picture with these in this order, drawn to its last line."""
    return re.compile(".*".join([*patterns, "q stop"]), re.DOTALL)


def test_view_shows_budget_phase_and_candidates(play: Play) -> None:
    played = play()
    played.tell(*BEGUN)
    screen = played.terminal.wait_for(whole("12/100"))
    for line in (
        "phase      minibatch: candidate 1  1/3  reward 1.000",
        "best       the seed, 0.500 on validation",
        "·   0   0.500",
        "▸ ?   1          from 0    1.000 in 1 call",
    ):
        assert line in screen
    assert screen.startswith("reverse-text with whet/tiny\n━━━━──")


def test_what_was_decided_stays_in_the_list_with_its_reason(play: Play) -> None:
    played = play()
    played.tell(*BEGUN, *ACCEPTED, "call 2 0 ModelError", "decided 2 rejected - worse than its parent: 0.00")
    screen = played.terminal.wait_for(whole("rejected: worse"))
    for line in (
        "best       candidate 1, 0.700 on validation; the seed 0.500 (+0.200)",
        "proposals  2 so far: 1 accepted, 1 rejected",
        "errors     1 call failed: reward 0",
        "✓   1   0.700  from 0    accepted: better on 4 of 10 examples",
        "✗   2          from 1    rejected: worse than its parent: 0.00",
    ):
        assert line in screen


def test_in_a_long_list_what_was_accepted_stays(play: Play) -> None:
    played = play(rows=20)
    played.tell(*BEGUN, *ACCEPTED, "decided 2 rejected - no")
    for number in range(3, 20):
        played.tell(f"proposed {number} 1 Try {number}.", f"decided {number} rejected - no")
    screen = played.terminal.wait_for(whole("▸ ✗  19"))
    for line in ("·   0   0.500", "✓   1   0.700", "✗  18", "▸ ✗  19"):
        assert line in screen
    assert "✗   5" not in screen


def test_calls_that_are_kept_back_are_seen_in_the_bar_until_they_are_made(play: Play) -> None:
    played = play()
    played.tell(*BEGUN)
    played.terminal.wait_for(whole("━─+┄{8} 12/100 calls"))
    played.tell("phase confirmation 10 1")
    assert "┄" not in played.terminal.wait_for(whole("the winner against the seed on held-out examples"))


def test_the_confirmation_is_told_in_words(play: Play) -> None:
    played = play(columns=120)
    played.tell(*BEGUN, *ACCEPTED, "confirmed 0.5 0.55 -0.1 0.2")
    played.terminal.wait_for("0.550, the seed 0.500: +0.050 (95 % interval -0.100 to +0.200): this is not a difference")


def test_in_the_end_the_budget_and_the_candidates_stay_above_what_is_said(play: Play) -> None:
    played = play()
    played.tell(*BEGUN, *ACCEPTED, "decided 2 rejected - no", "note a worker was replaced", "close")
    assert played.terminal.wait() == 0
    lines = played.terminal.text().split("\n")
    lines = lines[lines.index("a worker was replaced") :]
    assert lines[0] == "a worker was replaced"
    assert lines[1] == "reverse-text with whet/tiny"
    assert lines[2].endswith("s")
    assert [line[:7].strip() for line in lines[3:5]] == ["·   0", "▸ ✓   1"]
    assert lines[5] == "  ✗ 1 proposal was rejected"
    assert lines[6] == "the summary"
    assert "q stop" not in played.terminal.text()


def test_what_models_write_stays_text(play: Play) -> None:
    played = play()
    played.tell("plan 100", "decided 0 seed 0.5", f"proposed 1 0 {HOSTILE}", f"phase race 3 {HOSTILE}")
    played.tell(f"decided 1 rejected - {HOSTILE}")
    screen = played.terminal.wait_for(whole("rejected: "))
    assert screen.count("[31m[blink]red") == 2
    assert b"\x1b]0;owned" not in played.terminal.raw
    assert "\u202e".encode() not in played.terminal.raw
    assert played.terminal.screen.title == ""


@pytest.mark.parametrize("end", ["close", "crash", "SIGTERM"])
def test_the_terminal_is_given_back_however_it_ends(play: Play, end: str) -> None:
    played = play()
    terminal = played.terminal
    played.tell(*BEGUN)
    terminal.wait_for(whole("12/100"))
    assert not terminal.settings()[3] & termios.ECHO
    if end.startswith("SIG"):
        terminal.process.send_signal(signal.Signals[end])
    else:
        played.tell(end)
    terminal.wait()
    assert terminal.settings()[3] & termios.ECHO
    assert not terminal.screen.cursor.hidden
    assert "12/100" in terminal.text()


def test_q_asks_first_and_does_what_ctrl_c_does(play: Play) -> None:
    played = play()
    played.tell(*BEGUN)
    played.terminal.wait_for(WHOLE)
    played.terminal.send("q")
    played.terminal.wait_for("q again stops it (it can be resumed)")
    played.terminal.send("q")
    assert played.terminal.wait() in (1, -signal.SIGINT)


def test_a_window_that_changes_its_size_holds_one_picture_with_what_matters_most(play: Play) -> None:
    played = play(columns=90, rows=24)
    terminal = played.terminal
    played.tell(*BEGUN)
    terminal.wait_for(WHOLE)
    for number, (columns, rows) in enumerate(((50, 15), (100, 30), (40, 8), (90, 24)), 13):
        terminal.resize(columns, rows)
        played.tell("call 0 0 1")  # the picture that counts it is drawn for the new size
        shown = terminal.wait_for(re.compile(rf"{number}/100.*q stop", re.DOTALL))
        assert shown.count("reverse-text with whet/tiny") == 1
        assert shown.count("phase ") == 1
        assert shown.count("best ") == 1


def test_a_note_before_the_plan_is_printed_at_once(play: Play) -> None:
    played = play()
    played.tell("note the tasks are loaded")
    played.terminal.wait_for("the tasks are loaded")
    played.tell("close")
    assert played.terminal.wait() == 0
