"""The marker cache of a tokenizer does not change its output."""

from __future__ import annotations

from typing import Any

import pytest
from renderers import DefaultRendererConfig, Qwen3RendererConfig
from scripts.tiny_model.tokenizer import build_tokenizer

from whet.inference.rendering.renderer_choice import LONGEST_MARKER, choose_renderer, with_marker_cache

TEXTS = [
    "",
    "<|im_start|>assistant\n",
    "<think>",
    "a word",
    "x" * LONGEST_MARKER,
    "a longer text, with words of its own. " * 5,
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer()


def test_a_tokenizer_without_a_token_of_qwen3_is_rendered_by_its_template() -> None:
    tokenizer: Any = build_tokenizer()
    assert isinstance(choose_renderer(tokenizer), Qwen3RendererConfig)
    tokenizer.unk_token = "<|endoftext|>"  # which the renderer takes for one that is not there
    assert isinstance(choose_renderer(tokenizer), DefaultRendererConfig)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("special", [True, False])
def test_ids_are_the_same_the_first_time_and_later(tokenizer: Any, text: str, special: bool) -> None:
    knowing = with_marker_cache(tokenizer)
    expected = tokenizer.encode(text, add_special_tokens=special)
    assert [knowing.encode(text, add_special_tokens=special) for _ in range(3)] == [expected] * 3


def test_whoever_changes_the_ids_changes_nobody_elses(tokenizer: Any) -> None:
    knowing = with_marker_cache(tokenizer)
    knowing.encode("<think>", add_special_tokens=False).append(-1)
    assert knowing.encode("<think>", add_special_tokens=False) == tokenizer.encode("<think>", add_special_tokens=False)


def test_other_ways_to_ask_reach_the_tokenizer(tokenizer: Any) -> None:
    knowing = with_marker_cache(tokenizer)
    assert knowing.encode("a word") == tokenizer.encode("a word")
    assert knowing.encode("a word", truncation=True, max_length=1) == tokenizer.encode(
        "a word", truncation=True, max_length=1
    )


def test_the_tokenizer_that_was_given_stays_as_it_is(tokenizer: Any) -> None:
    with_marker_cache(tokenizer)
    assert "encode" not in vars(tokenizer)
