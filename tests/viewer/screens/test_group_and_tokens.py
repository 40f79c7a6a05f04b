"""A group side by side, and the tokens of a rollout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from whet.viewer.screens.group import GroupColumn
from whet.viewer.screens.tokens import TokenText
from whet.viewer.widgets.panes import Document

Fixture = Callable[..., Any]


def test_a_group_stands_side_by_side_with_its_differences_of_reward(
    evaluation: Fixture, rollout: Fixture, drive: Fixture
) -> None:
    path = evaluation([rollout(0, 1.0, "left answer"), rollout(0, 0.0, "right answer"), rollout(1, 1.0, "other task")])

    async def steps(driver: Any) -> None:
        await driver.sees("3 rollouts")
        await driver.type("g")
        text = await driver.sees("group of task 0", "2 rollouts, reward 0.500 from 0.000 to 1.000", "left answer")
        assert "other task" not in text
        assert "+0.500" in driver.line("-0.500")
        assert "right answer" in driver.line("left answer")
        await driver.type("right", "enter")
        await driver.sees("rollout 2 of 3", "right answer")

    drive(path, steps)


def test_columns_scroll_in_step_each_as_far_as_it_reaches(
    evaluation: Fixture, rollout: Fixture, drive: Fixture
) -> None:
    def lines(count: int) -> str:
        return "\n".join(f"line {number}" for number in range(count))

    path = evaluation([rollout(0, 1.0, lines(200)), rollout(0, 0.0, lines(60))])

    async def steps(driver: Any) -> None:
        await driver.sees("2 rollouts")
        await driver.type("g")
        await driver.sees("line 1")
        first, second = (side.query_one(Document) for side in driver.app.screen.query(GroupColumn))
        await driver.type("pagedown")
        assert first.scroll_offset.y == second.scroll_offset.y > 0
        await driver.type("end")
        assert first.scroll_offset.y == first.max_scroll_y > second.scroll_offset.y == second.max_scroll_y

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


def test_tokens_show_sampling_probability_and_version(training: Fixture, trained: Fixture, drive: Fixture) -> None:
    run = training([[trained("0", 1.0, 0.5, [85, 66, 88]), trained("0", 0.0, -0.5, [85, 66, 70])]])

    async def steps(driver: Any) -> None:
        await driver.sees("2 rollouts")
        await driver.type("t")
        await driver.sees("turn 1: 2 given, 3 sampled", "token 3 of 5, id 85, 'v'", "logprob -0.0100 (99.00%)")
        await driver.sees("policy version 4, advantage +0.500")
        await driver.type("n")
        await driver.sees("token 4 of 5, id 66, 'c'", "logprob -3.5000 (3.02%)")
        await driver.type("home")
        await driver.sees("token 1 of 5, id 257", "given, not sampled")
        await driver.type("right_square_bracket")
        await driver.sees("tokens of rollout 2 of 2", "advantage -0.500")

    drive(run, steps)


def test_the_token_under_the_mouse_is_told_of(training: Fixture, trained: Fixture, drive: Fixture) -> None:
    run = training([[trained("0", 1.0, 0.5, [85, 66, 88])]])

    async def steps(driver: Any) -> None:
        await driver.sees("1 rollouts")
        await driver.type("t")
        text = await driver.sees("token 3 of 5")
        row = next(at for at, line in enumerate(text.split("\n")) if "vcy" in line)
        await driver.pilot.hover(offset=(text.split("\n")[row].index("vcy") + 2, row))
        await driver.sees("token 5 of 5, id 88, 'y'")

    drive(run, steps)


def test_tokens_are_coloured_by_probability_and_by_advantage(
    training: Fixture, trained: Fixture, drive: Fixture
) -> None:
    run = training([[trained("0", 1.0, 0.5, [85, 66, 88])]])

    async def steps(driver: Any) -> None:
        await driver.sees("1 rollouts")
        await driver.type("t")
        await driver.sees("token 3 of 5")
        text = driver.app.screen.query_one(TokenText)

        def styles() -> dict[str, str]:
            row = next(at for at, line in enumerate(text.lines) if (2, "v") in line.pieces)
            return {piece.text: str(piece.style) for piece in text.render_line(row - text.scroll_offset.y)}

        assert "on red" in styles()["c"]  # 3 %
        assert "on red" not in styles()["y"]  # 50 %
        await driver.type("c")
        await driver.sees("colours: advantage")
        assert styles()["c"] == styles()["y"]
        assert "green" in styles()["y"]

    drive(run, steps)


def test_a_run_whose_tokenizer_is_not_here_shows_numbers_and_says_why(
    training: Fixture, trained: Fixture, drive: Fixture
) -> None:
    run = training([[trained("0", 1.0, 0.5, [85, 66, 88])]])
    config = run / "config.toml"
    config.write_text(config.read_text().replace("whet/tiny", "nobody/has-this"))

    async def steps(driver: Any) -> None:
        await driver.sees("1 rollouts")
        await driver.type("t")
        await driver.sees("257 266 85 66 88", "tokens are shown as numbers: the tokenizer of nobody/has-this is not on")

    drive(run, steps)


def test_an_evaluation_says_why_it_has_no_tokens(evaluation: Fixture, rollout: Fixture, drive: Fixture) -> None:
    path = evaluation([rollout(0, 1.0)])

    async def steps(driver: Any) -> None:
        await driver.sees("1 rollouts")
        await driver.type("t")
        await driver.sees("no tokens are kept in an evaluation")

    drive(path, steps)
