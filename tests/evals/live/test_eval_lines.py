"""Evaluations where nobody watches a terminal."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from whet.display.live import Output
from whet.evals.analysis.summary import SummaryBuilder
from whet.evals.live.view import EvalView

NAMES = {"environment": "arithmetic", "model": "whet/tiny", "sampling": "temperature 1"}


@pytest.fixture
def printed() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def lines(printed: io.StringIO, clock: Any) -> EvalView:
    return EvalView(Output(Console(file=printed, width=40, highlight=False), clock=clock))


def test_there_is_a_line_at_the_start_one_for_each_tenth_and_one_at_the_end(
    lines: EvalView, printed: io.StringIO, player: Any, clock: Any
) -> None:
    lines.start([player.plan(examples=10, rollouts=10)])
    rows = [player.row(task, 1.0) for task in range(10) for _ in range(10)]
    for row in rows:
        clock.now += 0.5
        lines.rollout(0, row)
    lines.finish(0, SummaryBuilder(**NAMES, rollouts_per_example=10, pass_threshold=0.5).summarize(rows, seconds=50.0))
    lines.close()
    found = printed.getvalue().splitlines()
    assert found[0] == "arithmetic with whet/tiny, temperature 1: 10 tasks x 10 rollouts"
    assert [line.split()[1] for line in found[1:]] == [f"{tenth}0/100" for tenth in range(1, 11)]
    assert found[1] == "arithmetic 10/100  reward 1.000  2.0 rollouts/s  45 s left"
    assert found[-1].endswith("2.0 rollouts/s  in 50 s")


def test_slow_rollouts_are_told_of_once_a_minute(
    lines: EvalView, printed: io.StringIO, player: Any, clock: Any
) -> None:
    lines.start([player.plan(examples=100, rollouts=10)])
    for _ in range(9):
        clock.now += 30.0
        lines.rollout(0, player.row(0, 1.0))
    assert [line.split()[1] for line in printed.getvalue().splitlines()[1:]] == [
        "2/1000",
        "4/1000",
        "6/1000",
        "8/1000",
    ]


def test_notes_are_told_at_once_and_nothing_hostile_gets_through(
    lines: EvalView, printed: io.StringIO, player: Any
) -> None:
    lines.start([player.plan("[red]x\x1b[2J")])
    lines.note("worker 1 died\x1b]0;owned\x07\nanother [bold]line")
    lines.rollout(0, player.row(0, "Bad\u202eError"))
    shown = printed.getvalue()
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "[red]x" in shown
    assert "worker 1 died" in shown
    assert "\nanother [bold]line\n" in shown


@pytest.mark.parametrize("stream", ["not a terminal", "TERM=dumb"])
def test_they_go_to_standard_error_where_no_live_view_can(
    stream: str, tmp_path: Path, player: Any, terminals: Any
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, player.__file__, str(pipe)]
    told = "start 1 4 3\nrollout 0 0 1\nnote hello\nclose\n"
    if stream == "TERM=dumb":
        terminal = terminals.open(command, env={"TERM": "dumb"})
        pipe.write_text(told)
        assert terminal.wait() == 0
        assert b"\x1b" not in terminal.raw
        assert "hello" in terminal.text()
        return
    environment = {**os.environ, "FORCE_COLOR": "1"}  # which is no reason to draw into a file
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    pipe.write_text(told)
    output, errors = process.communicate(timeout=60)
    assert output == "the summary\n"
    assert errors.splitlines()[0] == "arithmetic with whet/tiny, temperature 1: 4 tasks x 3 rollouts"
    assert errors.splitlines()[-1] == "hello"
    assert "\x1b" not in errors
