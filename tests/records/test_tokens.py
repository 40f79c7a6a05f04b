"""The tokens of a rollout: read, decoded, laid out in lines."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from whet.errors import ModelLoadError
from whet.inference.model_names import resolve_model
from whet.inference.rendering.vocabulary import Vocabulary, run_vocabulary
from whet.models.tiny import path as tiny
from whet.records.tokens import (
    NO_TOKENS,
    NO_TURNS,
    Token,
    colourings,
    describe,
    token_style,
    token_view,
)


def letters(ids: Sequence[int]) -> list[str]:
    return [chr(id) for id in ids]


def turn(start: int, prompt: str, completion: str, **more: Any) -> dict[str, Any]:
    return {
        "prompt_start": start,
        "prompt_ids": [ord(letter) for letter in prompt],
        "completion_ids": [ord(letter) for letter in completion],
        "completion_logprobs": [-0.5] * len(completion),
        "policy_version": [[3, len(completion)]],
        **more,
    }


def written(row: dict[str, Any]) -> list[str]:
    """Each turn as text, what was sampled in upper case."""
    view = token_view(row, letters)
    return [
        "".join((token.text or "").upper() if token.sampled else token.text or "" for token in one.tokens)
        for one in view.turns
    ]


def test_each_turn_shows_what_is_new_in_it() -> None:
    row = {"advantage": 0.25, "turns": [turn(0, "ab", "cd"), turn(4, "e", "f"), turn(2, "x", "y")]}
    assert written(row) == ["abCD", "eF", "xY"]
    view = token_view(row)
    assert [(one.number, one.start, one.branch) for one in view.turns] == [(1, 0, False), (2, 4, False), (3, 2, True)]
    assert (view.advantage, view.note) == (0.25, None)
    assert [token.text for token in view.tokens][:2] == [None, None]


def test_sampled_token_has_logprob_and_version() -> None:
    versions = turn(0, "a", "bcd", completion_logprobs=[-1.0, -2.0, -3.0], policy_version=[[7, 1], [8, 2]])
    given, *sampled = token_view({"turns": [versions]}).tokens
    assert (given.sampled, given.logprob, given.version) == (False, None, None)
    assert [(token.logprob, token.version) for token in sampled] == [(-1.0, 7), (-2.0, 8), (-3.0, 8)]


def test_a_token_of_an_answer_that_was_not_sampled_is_given() -> None:
    assert written({"turns": [turn(0, "a", "bcd", completion_mask=[1, 0, 1])]}) == ["aBcD"]


def test_token_has_known_values_of_the_learner() -> None:
    learner = {"learner_logprobs": [-0.6, -0.4], "ratio": [0.9, 1.1], "masked": [True, False], "clipped": [0, 1]}
    _, first, second = token_view({"turns": [turn(0, "a", "bc", **learner)]}).tokens
    assert (first.learner_logprob, first.ratio, first.masked, first.clipped) == (-0.6, 0.9, True, False)
    assert (second.learner_logprob, second.ratio, second.masked, second.clipped) == (-0.4, 1.1, False, True)


@pytest.mark.parametrize(("row", "note"), [({}, NO_TOKENS), ({"turns": [None]}, NO_TURNS), ({"turns": 3}, NO_TOKENS)])
def test_where_there_are_no_tokens_it_says_why(row: dict[str, Any], note: str) -> None:
    assert (token_view(row).turns, token_view(row).note) == ([], note)


def test_a_turn_without_tokens_among_others_says_so() -> None:
    view = token_view({"turns": [turn(0, "a", "b"), None]})
    assert [(len(one.tokens), one.note is None) for one in view.turns] == [(2, True), (0, False)]


@pytest.mark.parametrize("odd", [None, 3, "x", [], [None], [[1]], {"a": 1}, [["x", 2]], [[1, 10**12]], [True]])
def test_values_of_another_shape_are_left_out(odd: Any) -> None:
    names = ("completion_logprobs", "policy_version", "completion_mask", "learner_logprobs", "ratio", "prompt_start")
    for name in names:
        assert len(list(token_view({"turns": [turn(0, "a", "bc", **{name: odd})]}).tokens)) == 3
    for name in ("prompt_ids", "completion_ids"):
        list(token_view({"turns": [turn(0, "a", "bc", **{name: odd})]}, letters).tokens)


def test_character_of_several_tokens_is_the_text_of_the_last() -> None:
    tokenizer = Tokenizer.from_file(str(resolve_model("whet/tiny") / "tokenizer.json"))
    ids = tokenizer.encode("wörld 😀", add_special_tokens=False).ids
    texts = Vocabulary("whet/tiny").texts(ids)
    assert "".join(texts) == "wörld 😀"
    assert len(texts) == len(ids) > 7
    assert texts[-4:-1] == ["", "", ""]


def test_an_id_that_is_no_token_has_no_text() -> None:
    assert Vocabulary("whet/tiny").texts([39, 10**6, -1, 2**40, 68]) == ["H", "", "", "", "e"]


@pytest.mark.parametrize("content", [None, "{"])
def test_a_model_without_a_tokenizer_that_can_be_read_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelLoadError, match=str(tmp_path)):
        Vocabulary(str(tmp_path))


@pytest.mark.parametrize("model", ["nobody/has-this", "a/b/c", ""])
def test_a_model_that_is_not_here_is_not_downloaded(model: str) -> None:
    with pytest.raises(ModelLoadError, match=r"not on this machine|there is no model directory"):
        Vocabulary(model)


def test_tokenizer_of_the_run_precedes_that_of_its_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="not on this machine"):
        run_vocabulary(tmp_path, "nobody/has-this")
    shutil.copytree(tiny(), tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    assert "".join(run_vocabulary(tmp_path, "nobody/has-this").texts([85, 66, 88])) == "vcy"


def test_token_shows_known_values_of_training() -> None:
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
    assert token_style(tokens[2], "ratio", -0.5) == "masked"
    assert token_style(tokens[1], "advantage", -0.5) == "down"
    assert [token_style(token, "version", None) for token in tokens] == ["given", "version-1", "version-2"]
    assert [token_style(token, "logprob", None) for token in tokens] == ["given", "", ""]
    far = Token(1, "x", sampled=True, ratio=0.08, clipped=True)
    assert token_style(far, "ratio", None) == "far clipped"


def test_advantage_of_a_turn_overrides_that_of_the_rollout() -> None:
    turn: dict[str, Any] = {"prompt_ids": [1], "completion_ids": [2], "completion_logprobs": [-0.5]}
    view = token_view({"turns": [turn, {**turn, "advantage": 3.0}], "advantage": -0.5})
    _, first, _, second = view.tokens
    assert "advantage -0.500" in describe(first, 1, 4, -0.5)
    assert "advantage +3.000 (its turn's own)" in describe(second, 3, 4, -0.5)
    assert [token_style(token, "advantage", -0.5) for token in (first, second)] == ["down", "up"]
