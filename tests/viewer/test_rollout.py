"""One rollout to read, and a group side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fixture = Callable[..., Any]

CALL = {"id": "c1", "name": "python", "arguments": json.dumps({"code": "x = 1\nprint(x)", "timeout": 3})}


@pytest.fixture
def talk(evaluation: Fixture, rollout: Fixture, failed: dict[str, Any]) -> Path:
    """A rollout with reasoning, a tool call and a long answer; one with an error."""
    first = rollout(0, 1.0)
    first["completion"] = [
        {"role": "assistant", "content": "", "reasoning_content": "I should run it.", "tool_calls": [json.dumps(CALL)]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "assistant", "content": "\n".join(f"line {number}" for number in range(100))},
    ]
    path: Path = evaluation([first, rollout(1, None, "", **failed)])
    return path


def test_a_conversation_shows_roles_tools_and_results(talk: Path, drive: Fixture) -> None:
    async def steps(driver: Any) -> None:
        await driver.sees("2 rollouts")
        await driver.type("enter")
        text = await driver.sees("rollout 1 of 2", "calls python")
        shown = [line[:60].strip() for line in text.split("\n")]
        # Arguments one a line, code on lines of its own, and the tool by its name.
        assert "code:" in shown
        assert shown[shown.index("code:") + 1 :][:3] == ["x = 1", "print(x)", "timeout: 3"]
        assert any("tool python" in line for line in shown)

    drive(talk, steps)


def test_reasoning_is_folded_until_it_is_asked_for(talk: Path, drive: Fixture) -> None:
    async def steps(driver: Any) -> None:
        await driver.sees("2 rollouts")
        await driver.type("enter")
        await driver.sees("▸ reasoning, 16 characters", without="I should run it")
        await driver.type("r")
        await driver.sees("▾ reasoning", "I should run it.")
        await driver.type("r")
        await driver.sees("▸ reasoning", without="I should run it")

    drive(talk, steps)


def test_long_message_is_cut_until_it_is_opened(talk: Path, drive: Fixture) -> None:
    async def steps(driver: Any) -> None:
        await driver.sees("2 rollouts")
        await driver.type("enter")
        await driver.sees("rollout 1 of 2")
        await driver.type("end")
        await driver.sees("line 15", "show all 789 characters", without="line 16")
        await driver.type("a", "end")
        await driver.sees("line 99", without="show all 789")

    drive(talk, steps)


def test_a_piece_is_walked_to_and_opened_by_itself(talk: Path, drive: Fixture) -> None:
    async def steps(driver: Any) -> None:
        await driver.sees("2 rollouts")
        await driver.type("enter")
        await driver.sees("▸ reasoning")
        await driver.type("tab", "tab", "enter")
        await driver.sees("▾ reasoning", "I should run it.")
        await driver.type("shift+tab", "tab", "enter")
        await driver.sees("▸ reasoning", without="I should run it.")

    drive(talk, steps)


def test_a_click_on_show_all_shows_it(talk: Path, drive: Fixture) -> None:
    async def steps(driver: Any) -> None:
        await driver.sees("2 rollouts")
        await driver.type("enter")
        await driver.sees("rollout 1 of 2")
        await driver.type("end")
        text = await driver.sees("show all 789")
        row = next(at for at, line in enumerate(text.split("\n")) if "show all 789" in line)
        await driver.pilot.click(offset=(5, row))
        await driver.sees("line 16", without="show all 789")

    drive(talk, steps)


def test_next_rollout_moves_the_cursor_of_the_list(talk: Path, drive: Fixture) -> None:
    async def steps(driver: Any) -> None:
        await driver.sees("2 rollouts")
        await driver.type("enter")
        await driver.sees("rollout 1 of 2")
        await driver.type("right")
        await driver.sees("rollout 2 of 2", "question 1")
        await driver.type("right", "escape", "enter")
        await driver.sees("rollout 2 of 2")

    drive(talk, steps)


def test_details_say_rewards_metrics_tokens_and_times(talk: Path, drive: Fixture) -> None:
    async def steps(driver: Any) -> None:
        await driver.sees("2 rollouts")
        await driver.type("enter")
        await driver.sees("rollout 1 of 2")
        await driver.type("i")
        await driver.sees("reward  1.000", "exact_match  1.000", "input tokens  12", "total  1.5 s")

    drive(talk, steps, size=(110, 40))


def test_an_error_is_told_with_its_causes_one_a_line(talk: Path, drive: Fixture) -> None:
    async def steps(driver: Any) -> None:
        await driver.sees("2 rollouts")
        await driver.type("end", "enter", "i")
        await driver.sees("ModelError('no answer')", "because of TimeoutError()")

    drive(talk, steps, size=(80, 30))


def test_next_match_continues_in_the_next_rollout(evaluation: Fixture, rollout: Fixture, drive: Fixture) -> None:
    answer = "\n".join("needle" if number in (40, 80) else f"line {number}" for number in range(100))
    path = evaluation([rollout(0, 0.0, answer), rollout(1, 0.0, "nothing"), rollout(2, 0.0, "a Needle")])

    async def steps(driver: Any) -> None:
        await driver.sees("3 rollouts")
        await driver.type("enter")
        await driver.sees("rollout 1 of 3")
        await driver.type("slash", *"needle", "enter")
        await driver.sees("/needle in 2 rollouts")
        await driver.type("n")
        await driver.sees("line 39", "line 41")  # shown whole, because something was found in it
        await driver.type("n")
        await driver.sees("line 79", "line 81")
        await driver.type("n")
        await driver.sees("rollout 3 of 3", "a Needle")
        await driver.type("N")
        await driver.sees("rollout 1 of 3", "line 81")

    drive(path, steps)


def test_of_a_message_without_end_a_million_characters_are_shown(
    evaluation: Fixture, rollout: Fixture, drive: Fixture
) -> None:
    path = evaluation([rollout(0, 0.0, "word " * 500_000)])

    async def steps(driver: Any) -> None:
        await driver.sees("1 rollouts")
        await driver.type("enter")
        await driver.sees("show all 2,500,000 characters")
        await driver.type("a", "end")
        await driver.sees("1,500,000 more characters are not shown; an export has them")

    drive(path, steps)


def test_a_line_that_is_too_long_to_read_whole_says_what_is_left_out(
    evaluation: Fixture, rollout: Fixture, drive: Fixture
) -> None:
    path = evaluation([rollout(0, 0.0, "word " * 2_000_000)])

    async def steps(driver: Any) -> None:
        await driver.sees("1 rollouts")
        await driver.type("enter")
        await driver.sees("bytes of it are not shown", "word word")

    drive(path, steps)


def test_a_group_stands_side_by_side_with_its_differences_of_reward(
    evaluation: Fixture, rollout: Fixture, drive: Fixture
) -> None:
    path = evaluation([rollout(0, 1.0, "left answer"), rollout(0, 0.0, "right answer"), rollout(1, 1.0, "other task")])

    async def steps(driver: Any) -> None:
        await driver.sees("3 rollouts")
        await driver.type("g")
        text = await driver.sees(
            "group of arithmetic, task 0", "2 rollouts, reward 0.500 from 0.000 to 1.000", "left answer"
        )
        assert "other task" not in text
        assert "+0.500" in driver.line("-0.500")
        assert "right answer" in driver.line("left answer")
        await driver.type("right", "enter")
        await driver.sees("rollout 2 of 3", "right answer")

    drive(path, steps)


def test_columns_scroll_together(evaluation: Fixture, rollout: Fixture, drive: Fixture) -> None:
    def lines(name: str, count: int) -> str:
        return "\n".join(f"{name} {number}" for number in range(count))

    path = evaluation([rollout(0, 1.0, lines("left", 200)), rollout(0, 0.0, lines("right", 60))])

    async def steps(driver: Any) -> None:
        await driver.sees("2 rollouts")
        await driver.type("g")
        await driver.sees("left 1", "right 1")
        await driver.type("pagedown")
        await driver.sees("left 30", "right 30", without="left 1 ")
        assert "right 30" in driver.line("left 30")
        await driver.type("end")
        await driver.sees("left 199", without="right")

    drive(path, steps)


def test_group_scrolls_to_the_chosen_rollout(evaluation: Fixture, rollout: Fixture, drive: Fixture) -> None:
    path = evaluation([rollout(0, 1.0, f"answer {number}") for number in range(8)])

    async def steps(driver: Any) -> None:
        await driver.sees("8 rollouts")
        await driver.type("g")
        await driver.sees("1-2 of 8 rollouts", "answer 0", "answer 1", without="answer 2")
        await driver.type("right", "right", "right")
        await driver.sees("3-4 of 8 rollouts", "answer 2", "answer 3", without="answer 1")

    drive(path, steps, size=(80, 24))
