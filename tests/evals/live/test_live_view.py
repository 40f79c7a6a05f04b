"""The live view on a real (pseudo-)terminal: what it shows, what keys do, and how the terminal is left."""

from __future__ import annotations

import contextlib
import pty
import re
import shlex
import signal
import termios
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from whet.display.live import Output
from whet.evals.live.view import EvalView

Play = Callable[..., Any]
COUNTED = re.compile(r"1/12.*s sample", re.DOTALL)
"""The whole picture, its last line too, once a rollout is counted."""
HOSTILE = "\x1b]0;owned\x07\x1b[31m[blink]red\u202e"


def echoes(terminal: Any) -> bool:
    """Whether the terminal is as a shell wants it: echo, whole lines."""
    return bool(terminal.settings()[3] & termios.ECHO) and bool(terminal.settings()[3] & termios.ICANON)


def test_it_shows_how_far_it_is_what_was_earned_what_failed_and_a_sample(play: Play) -> None:
    played = play()
    played.tell("start 1 4 3", "rollout 0 0 1", "rollout 0 0 0", "rollout 0 0 1", "rollout 0 1 ModelError")
    screen = played.terminal.wait_for(re.compile(r"4/12.*s sample", re.DOTALL))
    assert screen.startswith("arithmetic with whet/tiny, temperature 1: 4 tasks x 3 rollouts\n━━━━━━━━━━━━━──")
    for line in (
        "reward     0.667",
        "errors     1 of 4: ModelError 1",
        "metrics    exact_match 0.667",
        "pass@k     1 0.667, 2 1.000 (reward >= 0.5)",
        "tokens     80 in, 20 out",
        "slowest    1.0 s task 0",
        "latest, task 0: reward 1.00",
        "user     What is 0 + 2?",
        "s sample   q stop",
    ):
        assert line in screen
    assert "rollouts/s" in screen
    assert "left" in screen


def test_the_arrow_keys_choose_the_evaluation_that_is_shown_in_detail(play: Play, terminals: Any) -> None:
    played = play()
    terminal = played.terminal
    played.tell("start 3 4 3", "rollout 0 0 1", "rollout 1 0 0")
    terminal.wait_for("▸ reverse-text")  # the one that works, until a key is pressed
    for key, shown in (
        ("\x1b[C", "calculator"),
        ("\x1b[B", "arithmetic"),  # round and round
        ("n", "reverse-text"),
        ("\x1b[D", "arithmetic"),
        ("\x1b[A", "calculator"),
        ("p", "reverse-text"),
    ):
        terminal.send(key)
        terminal.wait_for(f"▸ {shown}")
        terminal.wait_for(f"{shown} with whet/tiny, temperature 1: 4 tasks x 3 rollouts")
    assert "3 evaluations" in terminal.text()
    assert "2/36" in terminal.text()


def test_s_goes_through_the_samples(play: Play) -> None:
    played = play()
    played.tell("start 1 4 3", "rollout 0 0 0.5", "rollout 0 1 1", "rollout 0 2 0", "rollout 0 3 ToolError")
    for title in ("best, task 1: reward 1.00", "worst, task 2: reward 0.00", "failed, task 3: ToolError('no answer')"):
        played.terminal.wait_for("4/12")
        played.terminal.send("s")
        played.terminal.wait_for(title)


def test_what_is_printed_logged_or_noted_stands_above_it_once(play: Play) -> None:
    played = play()
    played.tell("start 1 4 3", "rollout 0 0 1")
    played.terminal.wait_for("1/12")
    played.tell("print something an environment printed", "log something logged", "note a worker was replaced")
    played.tell("rollout 0 1 1")
    screen = played.terminal.wait_for(re.compile(r"2/12.*s sample", re.DOTALL)).splitlines()
    for line in ("something an environment printed", "WARNING something logged", "a worker was replaced"):
        assert screen.count(line) == 1
    assert sum(line.startswith("arithmetic with") for line in screen) == 1
    assert screen.index("a worker was replaced") < screen.index(
        next(line for line in screen if line.startswith("arithmetic"))
    )


def test_what_a_model_says_stays_text(play: Play) -> None:
    played = play()
    played.tell("start 1 4 3", f"rollout 0 0 1 {HOSTILE}")
    screen = played.terminal.wait_for(COUNTED)
    assert "[31m[blink]red" in screen
    assert b"\x1b]0;owned" not in played.terminal.raw
    assert "\u202e".encode() not in played.terminal.raw
    assert played.terminal.screen.title == ""


def test_when_all_is_finished_it_makes_room_for_the_summary(play: Play) -> None:
    played = play()
    played.tell("start 1 1 3", "rollout 0 0 1", "note a worker was replaced")
    played.terminal.wait_for("1/3")
    played.tell("rollout 0 0 1", "rollout 0 0 1", "finish 0", "close")
    assert played.terminal.wait() == 0
    assert played.terminal.text().split("\n")[:2] == ["a worker was replaced", "the summary"]
    assert "1/3" not in played.terminal.text()


@pytest.mark.parametrize("end", ["close", "crash", "SIGTERM", "SIGHUP"])
def test_the_terminal_is_given_back_however_it_ends(play: Play, end: str) -> None:
    played = play()
    terminal = played.terminal
    played.tell("start 1 4 3", "rollout 0 0 1")
    terminal.wait_for(COUNTED)
    assert not echoes(terminal)
    assert terminal.screen.cursor.hidden
    if end.startswith("SIG"):
        terminal.process.send_signal(signal.Signals[end])
    else:
        played.tell(end)
    terminal.wait()
    assert echoes(terminal)
    assert not terminal.screen.cursor.hidden
    assert "1/12" in terminal.text()  # no summary comes, so the last picture stays


def test_q_asks_first_and_does_what_ctrl_c_does(play: Play) -> None:
    played = play()
    terminal = played.terminal
    played.tell("start 1 4 3", "rollout 0 0 1")
    terminal.wait_for(COUNTED)
    terminal.send("q")
    terminal.wait_for("q again stops it")
    terminal.send("x")
    terminal.wait_for("s sample")
    terminal.send("q")
    terminal.wait_for("q again stops it")
    terminal.send("q")
    assert terminal.wait() in (1, -signal.SIGINT)
    assert "KeyboardInterrupt" in terminal.text()
    assert echoes(terminal)


def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_takes_it_back(play: Play) -> None:
    played = play(lambda command: ["bash", "--norc", "--noprofile", "-i"], env={"PS1": "shell> "})
    terminal = played.terminal
    terminal.wait_for("shell>")
    terminal.send(shlex.join(played.command) + "\r")
    played.tell("start 1 4 3", "rollout 0 0 1")
    terminal.wait_for(COUNTED)
    terminal.send("\x1a")
    terminal.wait_for("Stopped")
    terminal.send("echo $((20 + 22))\r")
    terminal.wait_for("\n42")
    assert not terminal.screen.cursor.hidden
    terminal.send("fg\r")
    played.tell("rollout 0 1 1")
    terminal.wait_for("2/12")
    played.tell("close")
    terminal.wait_for("the summary")


def test_what_is_noted_in_the_background_is_told_in_the_end(play: Play) -> None:
    played = play(lambda command: ["bash", "--norc", "--noprofile", "-i"], env={"PS1": "shell> "})
    terminal = played.terminal
    terminal.wait_for("shell>")
    terminal.send(shlex.join(played.command) + "\r")
    played.tell("start 1 4 3", "rollout 0 0 1")
    terminal.wait_for("s sample")
    terminal.send("\x1a")
    terminal.wait_for("Stopped")
    terminal.send("bg\r")
    played.tell("note a worker was replaced", "close")
    terminal.wait_for(re.compile(r"a worker was replaced\s+the summary"))


def test_a_job_in_the_background_prints_plain_lines_and_leaves_the_terminal_alone(play: Play) -> None:
    played = play(lambda command: ["bash", "--norc", "--noprofile", "-i"], env={"PS1": "shell> "})
    terminal = played.terminal
    terminal.wait_for("shell>")
    terminal.send(shlex.join(played.command) + " &\r")
    played.tell("start 1 4 3", "rollout 0 0 1", "rollout 0 0 1", "close")
    terminal.wait_for(re.compile(r"arithmetic 2/12  reward 1\.000.*the summary", re.DOTALL))
    assert b"\x1b[?25l" not in terminal.raw


def test_a_small_window_shows_what_matters_most(play: Play) -> None:
    played = play(columns=40, rows=10)
    played.tell("start 2 4 3", "rollout 0 0 1", "rollout 0 0 ModelError")
    lines = played.terminal.wait_for(re.compile(r"2/12.*s sample", re.DOTALL)).splitlines()
    assert lines[0].startswith("2 evaluations")
    assert any(line.startswith("reward     1.000") for line in lines)
    assert any(line.startswith("errors     1 of 2") for line in lines)


def test_a_window_that_changes_its_size_holds_one_picture(play: Play) -> None:
    played = play(columns=90, rows=24)
    terminal = played.terminal
    played.tell("start 2 4 3", "rollout 0 0 1")
    terminal.wait_for("s sample")
    for number, (columns, rows) in enumerate(((50, 15), (100, 30), (40, 10), (90, 24)), 2):
        terminal.resize(columns, rows)
        played.tell("rollout 0 0 1")  # the picture that counts it is drawn for the new size
        terminal.wait_for(re.compile(rf"{number}/24.*s sample", re.DOTALL))
        shown = terminal.text()
        assert shown.count("2 evaluations") == 1
        assert shown.count("s sample") == 1


@pytest.mark.parametrize("no_color", [None, "1"])
def test_no_color_takes_the_colours_away_and_nothing_else(play: Play, no_color: str | None) -> None:
    played = play(env={"NO_COLOR": no_color})
    played.tell("start 1 4 3", "rollout 0 0 1")
    played.terminal.wait_for("1/12")
    coloured = re.search(rb"\x1b\[([0-9]+;)*3[0-7]m", played.terminal.raw) is not None
    assert coloured == (no_color is None)


def test_no_key_is_read_where_the_input_is_something_else(play: Play) -> None:
    played = play(lambda command: ["sh", "-c", f"{shlex.join(command)} < /dev/null"])
    terminal = played.terminal
    played.tell("start 1 4 3", "rollout 0 0 1")
    terminal.wait_for("latest, task 0")
    assert "s sample" not in terminal.text()
    assert echoes(terminal)
    played.tell("close")
    assert terminal.wait() == 0


def test_rollouts_are_drawn_no_more_often_than_the_clock_allows(player: Any, clock: Any) -> None:
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as file:
        console = Console(file=file, force_terminal=True, width=80, height=24, highlight=False)
        view = EvalView(Output(console, live=True, clock=clock))  # whose clock stands still
        view.start([player.plan(examples=1000)])
        for task in range(1000):
            view.rollout(0, player.row(task, 1.0))
        view.close()
    drawn = b""
    with contextlib.suppress(OSError), open(master, "rb", buffering=0) as screen:  # OSError: nothing more comes
        while data := screen.read(4096):
            drawn += data
    # At the beginning and in the end, and once more as rich lets the place go.
    assert drawn.count(b"arithmetic with") <= 3
    assert b"1000/3000" in drawn
