"""Tokens in lines."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from whet.viewer.tokens import Token, TokenTurn, TokenView, token_view
from whet.viewer.widgets.token_lines import colour, colourings, describe, token_lines

TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=12)


@given(TEXTS, st.integers(2, 40))
def test_every_token_is_seen_in_lines_no_wider_than_the_window(texts: list[str], width: int) -> None:
    tokens = [Token(number, text, sampled=True) for number, text in enumerate(texts)]
    lines = token_lines(TokenView([TokenTurn(1, 0, False, tokens)], None), width)
    assert {place for line in lines for place, _ in line.pieces} == set(range(len(texts)))
    for line in lines:
        assert sum(cell_len(text) for _, text in line.pieces) <= width
        assert all(text.isprintable() for _, text in line.pieces)


def test_lines_end_where_the_text_s_lines_end() -> None:
    tokens = [Token(0, "a\n\n", sampled=False), Token(1, "b", sampled=True)]
    lines = token_lines(TokenView([TokenTurn(1, 0, False, tokens)], None), 40)
    assert [line.pieces for line in lines[1:-1]] == [((0, "a⏎"),), ((0, "⏎"),), ((1, "b"),)]


def test_what_training_made_of_a_token_is_told_where_it_is_known() -> None:
    turn: dict[str, Any] = {
        "prompt_ids": [1],
        "completion_ids": [2, 3],
        "completion_logprobs": [-0.5, -0.5],
        "learner_logprobs": [-0.4, -3.0],
        "ratio": [1.1, 0.08],
        "masked": [False, True],
        "clipped": [False, False],
        "policy_version": [[1, 1], [2, 1]],
    }
    view = token_view({"turns": [turn], "advantage": -0.5})
    tokens = list(view.tokens)
    assert colourings(view) == ["logprob", "advantage", "ratio", "version"]
    assert "ratio 0.080" in describe(tokens[2], 2, 3, -0.5)
    assert "masked" in describe(tokens[2], 2, 3, -0.5)
    assert colour(tokens[2], "ratio", -0.5).strike
    assert colour(tokens[1], "advantage", -0.5).color is not None
    assert colour(tokens[1], "version", None) != colour(tokens[2], "version", None)
    assert colour(tokens[0], "logprob", None).dim


def test_a_turn_with_an_advantage_of_its_own_shows_that_and_not_the_rollouts() -> None:
    turn: dict[str, Any] = {"prompt_ids": [1], "completion_ids": [2], "completion_logprobs": [-0.5]}
    view = token_view({"turns": [turn, {**turn, "advantage": 3.0}], "advantage": -0.5})
    _, first, _, second = view.tokens
    assert "advantage -0.500" in describe(first, 1, 4, -0.5)
    assert "advantage +3.000 (its turn's own)" in describe(second, 3, 4, -0.5)
    assert colour(first, "advantage", -0.5) != colour(second, "advantage", -0.5)
