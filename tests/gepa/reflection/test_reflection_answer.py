"""From an answer to a text that can be tried."""

from __future__ import annotations

import pytest

from whet.gepa.reflection.reflection import Unusable, check, placeholders_of, text_of


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("Low rewards come of X.\n\n<new_text>\nDo Y.\n</new_text>", "Do Y."),
        ("<new_text>Do Y.</new_text> I hope it helps.", "Do Y."),
        ("I was told <new_text> and </new_text>.\n<new_text>\nDo Y.\n</new_text>", "Do Y."),
        ("<new_text>\nDo Y:\n```\nx = 1\n```\nEnd.\n</new_text>", "Do Y:\n```\nx = 1\n```\nEnd."),
        ("<new_text>\nDo Y.", "Do Y."),
        ("<think>Perhaps <new_text>no</new_text></think>\n<new_text>Do Y.</new_text>", "Do Y."),
        ("```\nDo Y, and then Z.\n```", "Do Y, and then Z."),
        ("Here:\n```text\nDo Y, and then Z, always.\n```", "Do Y, and then Z, always."),
        ("You add numbers, carefully.\n```json\n{}\n```\nis the form of an answer.", None),
        ("Do Y.", "Do Y."),
    ],
)
def test_the_text_is_found_where_models_put_it(answer: str, text: str | None) -> None:
    assert text_of(answer) == (answer if text is None else text)


@pytest.mark.parametrize("answer", ["", "  \n", "<new_text>\n\n</new_text>", "```\n\n```", "<think>hm</think>"])
def test_nothing_is_no_text(answer: str) -> None:
    with pytest.raises(Unusable, match="empty"):
        text_of(answer)


@pytest.mark.parametrize("answer", ["<new_text>\nDo Y and", "I would begin by"])
def test_half_a_text_is_none(answer: str) -> None:
    with pytest.raises(Unusable, match="cut off"):
        text_of(answer, cut_off=True)


def test_a_text_that_was_finished_before_the_limit_is_one() -> None:
    assert text_of("<new_text>Do Y.</new_text> And so", cut_off=True) == "Do Y."


def test_half_characters_are_mended() -> None:
    text_of("<new_text>\ud83d</new_text>").encode()


@pytest.mark.parametrize(
    ("text", "why"), [("Do X.", "unchanged"), ("x" * 51, "51 characters, and 50 are allowed"), ("x" * 50, None)]
)
def test_the_current_text_and_one_that_is_too_long_cannot_be_tried(text: str, why: str | None) -> None:
    if why is None:
        check(text, "Do X.", most=50, placeholders=None)
        return
    with pytest.raises(Unusable, match=why):
        check(text, "\nDo X.\n", most=50, placeholders=None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Is {response} right? {question} {answer}", None),
        ("Is {response} right? {{literal}} {question} {answer}", None),
        ("Is {response} right? {question}", "lost {answer}"),
        ("Is {response} {right}? {question} {answer}", "has {right}, which nothing fills in"),
        ("Is {response} right? {question} {answer} {", "braces cannot be read"),
    ],
)
def test_a_judge_keeps_its_placeholders_and_gets_no_others(text: str, why: str | None) -> None:
    wanted = placeholders_of("{question} {answer} {response}")
    if why is None:
        check(text, "current", most=1000, placeholders=wanted)
        return
    with pytest.raises(Unusable) as caught:
        check(text, "current", most=1000, placeholders=wanted)
    assert why in str(caught.value)


def test_braces_in_a_system_prompt_mean_nothing() -> None:
    check('Answer {"a": 1}.', "current", most=1000, placeholders=None)
