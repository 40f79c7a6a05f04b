"""What differs between two prompts, line by line and word by word."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whet.gepa.text_diff import MOST_WORDS, DiffLine, difference, differences, whole

TEXT = st.lists(st.sampled_from(["Think first.", "Answer.", "Be brief.", "", "Think last.", "\r"])).map("\n".join)


def shown(lines: list[DiffLine]) -> list[str]:
    """`-` and `+` before lines that went and came, the words that differ in brackets."""
    marks = {"same": " ", "gone": "-", "new": "+", "hidden": "…"}
    return [
        marks[line.kind] + "".join(f"[{text}]" if changed else text for text, changed in line.pieces) for line in lines
    ]


def test_equal_texts_have_no_difference() -> None:
    assert difference("Answer.", "Answer.") == []
    assert differences({"system_prompt": "a"}, {"system_prompt": "a"}) == {}


def test_a_line_that_was_changed_shows_the_words_that_were() -> None:
    assert shown(difference("Reverse the text you are given.", "Reverse every text you are given, slowly.")) == [
        "-Reverse [the] text you are given.",
        "+Reverse [every] text you are given[, slowly].",
    ]


def test_a_line_that_is_another_one_altogether_is_marked_whole() -> None:
    assert shown(difference("Answer at once.", "Think step by step, and only then say it")) == [
        "-[Answer at once.]",
        "+[Think step by step, and only then say it]",
    ]


def test_lines_that_went_stand_before_lines_that_came() -> None:
    assert shown(difference("one 1\ntwo 2", "one 3\ntwo 4\nnew")) == [
        "-one [1]",
        "-two [2]",
        "+one [3]",
        "+two [4]",
        "+[new]",
    ]


def test_a_line_is_compared_with_the_one_it_became_though_others_came_before_it() -> None:
    assert shown(difference("Answer with the text.", "Think about every letter.\nAnswer with the whole text.")) == [
        "-Answer with the text.",
        "+[Think about every letter.]",
        "+Answer with the[ whole] text.",
    ]


def test_far_from_a_change_lines_that_are_the_same_are_only_counted() -> None:
    same = "\n".join(f"line {number}" for number in range(10))
    assert shown(difference(f"{same}\nold\n{same}", f"{same}\n!\n{same}")) == [
        "…8 lines are the same",
        " line 8",
        " line 9",
        "-[old]",
        "+[!]",
        " line 0",
        " line 1",
        "…8 lines are the same",
    ]


def test_a_single_line_is_shown_rather_than_counted() -> None:
    assert shown(difference("a\nb\nc\nold", "a\nb\nc\n!")) == [" a", " b", " c", "-[old]", "+[!]"]


def test_components_that_came_or_went_are_differences_too() -> None:
    found = differences({"system_prompt": "a", "tool:x": "b"}, {"system_prompt": "a", "judge": "c"})
    assert {name: shown(lines) for name, lines in found.items()} == {
        "tool:x": ["-[b]", "+[]"],
        "judge": ["-[]", "+[c]"],
    }


def test_very_long_lines_are_not_compared_word_by_word() -> None:
    long = "word " * MOST_WORDS
    assert [line.pieces for line in difference(long, long + "x")] == [((long, True),), ((long + "x", True),)]


@given(before=TEXT, after=TEXT)
def test_without_what_came_it_is_the_old_text_and_without_what_went_the_new_one(before: str, after: str) -> None:
    lines = difference(before, after, context=1000) or whole(before)
    assert "\n".join(line.text for line in lines if line.kind != "new") == before
    assert "\n".join(line.text for line in lines if line.kind != "gone") == after
