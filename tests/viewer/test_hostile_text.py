"""What a model or an environment wrote cannot steer the terminal, nor the viewer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fixture = Callable[..., Any]

HOSTILE = (
    "\x1b[2J\x1b[1;1H\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07 [bold red]markup[/] [@click=app.quit]click[/] [/] "
    "\u202egnp.exe \u2066x\u2069 \u200b\x00\x08\x9b31m $primary {braces} %s "
    "שלום مرحبا 日本語 👩\u200d👩\u200d👧 e" + "\u0301" * 50 + "\n\r\t" + "wide" * 2000
)


@pytest.fixture
def hostile_rollout(rollout: Fixture) -> dict[str, Any]:
    """A row in which every field that is text is hostile."""
    row: dict[str, Any] = rollout(0, 0.5)
    call = {"id": HOSTILE, "name": HOSTILE, "arguments": HOSTILE}
    row |= {
        "example_id": HOSTILE,
        "prompt": [{"role": HOSTILE, "content": HOSTILE}, {"role": "user", "content": HOSTILE}, HOSTILE, 7, None],
        "completion": [
            {"role": "assistant", "content": HOSTILE, "reasoning_content": HOSTILE, "tool_calls": [call, HOSTILE, 3]},
            {"role": "tool", "tool_call_id": HOSTILE, "content": [{"type": "text", "text": HOSTILE}, HOSTILE]},
        ],
        "metrics": {HOSTILE: 1.0, "other": HOSTILE},
        "error": {"error": HOSTILE, "error_chain_repr": HOSTILE},
        "stop_condition": HOSTILE,
        "answer": HOSTILE,
        "left_out_bytes": HOSTILE,
        "info": {HOSTILE: [HOSTILE]},
        "timing": HOSTILE,
        "token_usage": [HOSTILE],
        "tool_defs": [{"name": HOSTILE, "description": HOSTILE}],
        HOSTILE: HOSTILE,
    }
    return row


def check(text: str) -> None:
    """Only characters that print."""
    assert [line for line in text.split("\n") if not line.isprintable()] == []


def test_hostile_rows_are_shown_as_they_are_on_every_screen(
    evaluation: Fixture, hostile_rollout: dict[str, Any], drive: Fixture
) -> None:
    path = evaluation([hostile_rollout, hostile_rollout], environment=HOSTILE)

    async def steps(driver: Any) -> None:
        check(await driver.sees("2 rollouts"))
        for keys in (["s"], ["escape", "enter"], ["i"], ["a"], ["r"], ["end"], ["pageup"], ["g"], ["r", "p"], ["end"]):
            await driver.type(*keys)
            await driver.pilot.pause()
            check(driver.text())
        await driver.type("escape", "escape", "t")
        check(await driver.sees("no tokens are kept"))
        await driver.type("y", "question_mark")
        await driver.pilot.pause()
        check(driver.text())

    for size in ((110, 40), (60, 20)):
        drive(path, steps, size=size)


def test_markup_in_a_message_is_letters_and_no_link(evaluation: Fixture, rollout: Fixture, drive: Fixture) -> None:
    path = evaluation([rollout(0, 0.0, "[bold]loud[/bold] [@click=app.quit]leave[/]")])

    async def steps(driver: Any) -> None:
        await driver.sees("1 rollouts")
        await driver.type("enter")
        text = await driver.sees("[bold]loud[/bold] [@click=app.quit]leave[/]")
        row = next(at for at, line in enumerate(text.split("\n")) if "leave" in line)
        await driver.pilot.click(offset=(35, row))
        await driver.sees("rollout 1 of 1", "leave")

    drive(path, steps)


def test_a_hostile_search_that_is_typed_is_searched_for_as_it_is(
    evaluation: Fixture, rollout: Fixture, drive: Fixture
) -> None:
    path = evaluation([rollout(0, 0.0, "a [/b] c"), rollout(1, 0.0, "b")])

    async def steps(driver: Any) -> None:
        await driver.sees("2 rollouts")
        await driver.type("slash", "left_square_bracket", "slash", "b", "right_square_bracket", "enter")
        await driver.sees("/[/b] in 1 rollouts")

    drive(path, steps)


def test_nothing_but_the_viewer_s_own_sequences_reaches_the_terminal(
    evaluation: Fixture, hostile_rollout: dict[str, Any], terminals: Any, tmp_path: Path
) -> None:
    evaluation([hostile_rollout], environment=HOSTILE)
    terminal = terminals.open(["whet", "view"], cwd=tmp_path, columns=80, rows=24)
    terminal.wait_for("1 below outputs/evals")
    terminal.send("\r")
    terminal.wait_for("1 rollouts")
    terminal.send("\r")
    terminal.wait_for("rollout 1 of 1")
    terminal.send("g")
    terminal.wait_for("group of")
    terminal.send("q")
    assert terminal.wait() == 0
    assert b"\x1b]52" not in terminal.raw
    assert b"owned\x07" not in terminal.raw
    assert b"\x9b" not in re.sub(rb"[\xc2-\xf4][\x80-\xbf]+", b"", terminal.raw)
    assert "\u202e" not in terminal.raw.decode(errors="replace")
