"""The tokens of a rollout on the screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from whet.display.lines import keys_in
from whet.records.tokens import Token, TokenTurn, TokenView
from whet.viewer.rollout import token_lines

Fixture = Callable[..., Any]


def test_tokens_show_sampling_probability_and_version(training: Fixture, trained: Fixture, drive: Fixture) -> None:
    run = training([[trained("0", 1.0, 0.5, [85, 66, 88]), trained("0", 0.0, -0.5, [85, 66, 70])]])

    async def steps(driver: Any) -> None:
        await driver.sees("2 rollouts")
        await driver.type("t")
        await driver.sees("turn 1: 2 given, 3 sampled", "token 3 of 5, id 85, 'v'", "logprob -0.0100 (99.00%)")
        await driver.sees("policy version 4, advantage +0.500")
        await driver.type("n")
        await driver.sees("token 4 of 5, id 66, 'c'", "logprob -3.5000 (3.02%)")
        await driver.type("left", "left", "left")
        await driver.sees("token 1 of 5, id 257", "given, not sampled")
        await driver.type("right_square_bracket")
        await driver.sees("tokens of rollout 2 of 2", "advantage -0.500")

    drive(run, steps)


def test_a_click_on_a_token_shows_what_is_known_of_it(training: Fixture, trained: Fixture, drive: Fixture) -> None:
    run = training([[trained("0", 1.0, 0.5, [85, 66, 88])]])

    async def steps(driver: Any) -> None:
        await driver.sees("1 rollouts")
        await driver.type("t")
        text = await driver.sees("token 3 of 5")
        row = next(at for at, line in enumerate(text.split("\n")) if "vcy" in line)
        await driver.pilot.click(offset=(text.split("\n")[row].index("vcy") + 2, row))
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
        text = driver.app.screen.document

        def styles() -> dict[str, str]:
            row = text.rows["2"]
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


TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=12)


@given(TEXTS, st.integers(2, 40))
@example(["e", "\u0301"], 2)  # a combining mark by itself takes no cells
def test_every_token_is_in_lines_no_wider_than_the_window(texts: list[str], width: int) -> None:
    tokens = [Token(number, text, sampled=True) for number, text in enumerate(texts)]
    lines = token_lines(TokenView([TokenTurn(1, 0, False, tokens)], None), width, "logprob")
    assert {key for line in lines for key in keys_in(line)} == set(map(str, range(len(texts))))
    for line in lines[1:]:  # after the heading
        assert cell_len(line.plain) <= width
        assert line.plain.isprintable()


def test_lines_end_where_the_text_s_lines_end() -> None:
    tokens = [Token(0, "a\n\n", sampled=False), Token(1, "b", sampled=True)]
    lines = token_lines(TokenView([TokenTurn(1, 0, False, tokens)], None), 40, "logprob")
    assert [(line.plain, keys_in(line)) for line in lines[1:-1]] == [("a⏎", ["0"]), ("⏎", ["0"]), ("b", ["1"])]
