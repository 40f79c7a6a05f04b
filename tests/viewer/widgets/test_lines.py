"""Text from files on a screen: harmless, wrapped, marked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from whet.viewer.widgets.lines import fitted, line, plain, wrapped

ANY_TEXT = st.text(st.characters() | st.sampled_from("\n\t \x1b[]e\u0301日"), max_size=300)
HOSTILE = ["\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x9b31m", "\r", "\b\b", "\u202e", "\u2066", "\u200b", "\x00", "\ufe0f"]


@given(ANY_TEXT, st.integers(1, 40))
def test_wrapped_lines_are_printable_and_no_wider_than_the_window(text: str, width: int) -> None:
    for made in wrapped(text, width):
        assert made.text.isprintable()
        # A character of two cells cannot be narrower than itself.
        assert cell_len(made.text) <= max(width, 2)


@given(ANY_TEXT, st.integers(2, 40))
def test_wrapping_loses_nothing_but_blanks_at_the_breaks(text: str, width: int) -> None:
    whole = "".join(made.text for made in wrapped(text, 10**6))
    broken = "".join(made.text for made in wrapped(text, width))
    assert broken.replace(" ", "") == whole.replace(" ", "")


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_that_could_steer_a_terminal_is_left(hostile: str) -> None:
    shown = [line(f"a{hostile}b"), *wrapped(f"a{hostile}b", 40)]
    for made in shown:
        assert made.text.isprintable()
        assert "\ufe0f" not in made.text


def test_markup_is_text_like_any_other() -> None:
    assert line("[bold]x[/bold] [@click=app.quit]y[/]").text == "[bold]x[/bold] [@click=app.quit]y[/]"
    assert [made.text for made in wrapped("[red]x[/]", 20)] == ["[red]x[/]"]


def test_lines_break_between_words_and_keep_their_indentation() -> None:
    assert [made.text for made in wrapped("one two three\n    four five", 9)] == [
        "one two",
        "three",
        "    four",
        "five",
    ]


def test_a_word_longer_than_the_window_is_broken_inside() -> None:
    assert [made.text for made in wrapped("a" * 10, 4)] == ["aaaa", "aaaa", "aa"]


def test_wide_characters_count_as_two_cells() -> None:
    assert [made.text for made in wrapped("日本語日本", 4)] == ["日本", "語日", "本"]


def test_marks_on_one_letter_without_end_are_broken_too() -> None:
    pieces = [made.text for made in wrapped("a" + "\u0301" * 1000, 10)]
    assert max(map(len, pieces)) <= 40


def test_what_is_searched_for_is_marked_in_any_case_and_across_a_break() -> None:
    made = list(wrapped("the Answer answers", 8, query="answer"))
    assert [made_line.spans for made_line in made] == [
        (("the", ""),),
        (("Answer", "match"),),
        (("answer", "match"), ("s", "")),
    ]
    assert [made_line.spans for made_line in wrapped("abcdef", 4, query="de")] == [
        (("abc", ""), ("d", "match")),
        (("e", "match"), ("f", "")),
    ]


@given(st.text(max_size=30), st.integers(2, 20), st.booleans())
def test_a_cell_has_exactly_its_width(text: str, width: int, right: bool) -> None:
    assert cell_len(fitted(plain(text), width, right)) == width
