"""`whet view` in a real terminal: keys typed, the screen read."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.records.directory import RESULTS
from whet.rl.monitors.protocol import EvalReport
from whet.rl.storage.run_directory import write_evaluation
from whet.rollouts.totals import EvalScore

Fixture = Callable[..., Any]
LEFT = b"\x1b[?1049l"
"""Gives the screen back as it was before."""


@pytest.fixture
def run(evaluation: Fixture, rollout: Fixture) -> Path:
    path: Path = evaluation([rollout(task, task / 40, f"answer {task}") for task in range(40)])
    return path


def test_keys_go_from_the_runs_to_a_conversation_and_back(run: Path, terminals: Any, tmp_path: Path) -> None:
    terminal = terminals.open(["whet", "view"], fresh=True, cwd=tmp_path, columns=80, rows=24)
    terminal.wait_for("1 below outputs/evals")
    terminal.send("\r")
    terminal.wait_for("40 rollouts")
    terminal.send("R")
    terminal.wait_for(lambda lines: "sorted by reward ↓" in lines[2] and "0.975" in lines[4])
    terminal.send("\x1b[B\r")
    terminal.wait_for(re.compile(r"rollout 2 of 40.*answer 38", re.DOTALL))
    terminal.send("\x1b")
    terminal.wait_for("sorted by reward")
    terminal.send("/answer 7\r")
    terminal.wait_for("in 1 rollouts")
    terminal.send("n\r")
    terminal.wait_for(re.compile(r"task 7.*answer 7", re.DOTALL))
    terminal.send("?")
    terminal.wait_for("shift+tab")
    terminal.send("\x1b")
    terminal.wait_for(lambda lines: not any("shift+tab" in line for line in lines))
    terminal.send("q")
    assert terminal.wait() == 0


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_every_width_shows_the_names_of_runs_first(
    training: Fixture, trained: Fixture, terminals: Any, tmp_path: Path, columns: int
) -> None:
    rows = [[trained("0", 1.0, 0.5, [85, 66])]]
    for name in ("slow-and-steady", "fast-and-loose"):
        training(rows, name=name)
    terminal = terminals.open(["whet", "view"], cwd=tmp_path, columns=columns, rows=20)
    screen = terminal.wait_for("2 below runs").splitlines()
    assert screen[1].split()[0] == "name"
    assert {line.split()[0] for line in screen[2:4]} == {"slow-and-steady", "fast-and-loose"}


def test_greedy_and_sampled_rollouts_of_a_held_out_task_are_shown_apart(
    training: Fixture, trained: Fixture, terminals: Any, tmp_path: Path
) -> None:
    run = training([[]])
    ways = {"temperature 1": [0.1, 0.2], "greedy": [0.9]}
    scores = [
        EvalScore(
            "reverse-text", way, 0.5, {}, len(rewards), 0, [trained("3", each, 0.0, [85, 66]) for each in rewards]
        )
        for way, rewards in ways.items()
    ]
    write_evaluation(run / "rollouts", EvalReport("before", 0, 0, scores))
    terminal = terminals.open(["whet", "view", run], columns=120, rows=24)
    terminal.wait_for(lambda lines: "sampling" in lines[2] and "temperature 1" in lines[3] and "greedy" in lines[5])
    terminal.send("g")
    terminal.wait_for(re.compile("temperature 1 .*2 rollouts, reward 0.150 from 0.100 to 0.200"))


@pytest.mark.parametrize(("key", "code"), [("q", 0), ("\x03", 130)], ids=["q", "Ctrl-C"])
def test_the_terminal_is_given_back_as_it_was(run: Path, terminals: Any, key: str, code: int) -> None:
    terminal = terminals.open(["whet", "view", run])
    terminal.wait_for("40 rollouts")
    terminal.send(key)
    assert terminal.wait() == code
    assert terminal.settings() == terminal.settings_before
    assert terminal.raw.rstrip().endswith(b"l")  # the last that is written switches a mode of the viewer's off
    assert LEFT in terminal.raw


def test_a_window_is_pulled_small_and_large_again(run: Path, terminals: Any) -> None:
    terminal = terminals.open(["whet", "view", run], columns=110, rows=30)
    terminal.wait_for("40 rollouts")
    terminal.resize(60, 20)
    # The emulator itself leaves out lines at the top: the first one says that the viewer has painted.
    terminal.wait_for(lambda lines: "arithmetic" in lines[0] and "tokens" not in lines[2] and "q quit" in lines[-1])
    terminal.resize(110, 30)
    terminal.wait_for(lambda lines: "tokens" in lines[2])
    terminal.send("q")
    assert terminal.wait() == 0


def test_no_color_means_no_colour(run: Path, terminals: Any) -> None:
    terminal = terminals.open(["whet", "view", run], columns=80, rows=24, env={"NO_COLOR": "1"})
    terminal.wait_for("40 rollouts")
    terminal.send("\x1b[B")
    terminal.wait_for("40 rollouts")
    terminal.send("\r")
    terminal.wait_for("rollout 2 of 40")
    terminal.send("q")
    assert terminal.wait() == 0
    given = {code for codes in re.findall(rb"\x1b\[([0-9;]*)m", terminal.raw) for code in codes.split(b";")}
    # 39 and 49 are the terminal's own colours; 7 is how the cursor's row is seen.
    assert given & {str(code).encode() for code in (*range(30, 39), *range(40, 49), *range(90, 108))} == set()
    assert b"7" in given


def test_rows_that_another_process_writes_appear(run: Path, rollout: Fixture, terminals: Any) -> None:
    terminal = terminals.open(["whet", "view", run], columns=80, rows=24)
    terminal.wait_for("40 rollouts")
    with (run / RESULTS).open("a") as file:
        file.write(json.dumps(rollout(99, 1.0)) + "\n")
    terminal.wait_for("41 rollouts")
    terminal.send("\x1b[F")
    terminal.wait_for("question 99")
    terminal.send("q")
    assert terminal.wait() == 0


def test_the_mouse_chooses_a_row_and_a_key(run: Path, terminals: Any) -> None:
    def click(terminal: Any, text: str) -> None:
        row = next(at for at, line in enumerate(terminal.lines()) if text in line)
        column = terminal.lines()[row].index(text)
        terminal.send(f"\x1b[<0;{column + 1};{row + 1}M\x1b[<0;{column + 1};{row + 1}m")

    terminal = terminals.open(["whet", "view", run], columns=80, rows=24)
    terminal.wait_for("question 5")
    click(terminal, "question 5")
    terminal.wait_for("rollout 6 of 40")
    terminal.wait_for("→ after")
    for _ in range(20):  # the footer is made again when a screen is opened, and a click may come too early
        click(terminal, "→ after")
        with contextlib.suppress(AssertionError):
            terminal.wait_for(re.compile("rollout [789] of 40"), 1)
            break
    click(terminal, "q quit")
    assert terminal.wait() == 0
