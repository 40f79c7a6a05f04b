"""Text from files on a screen: harmless, wrapped, marked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from whet.display.lines import Column, fitted, layout, plain, side_by_side, styled, wrapped

ANY_TEXT = st.text(st.characters() | st.sampled_from("\n\t \x1b[]e\u0301日"), max_size=300)
HOSTILE = ["\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x9b31m", "\r", "\b\b", "\u202e", "\u2066", "\u200b", "\x00", "\ufe0f"]


@given(ANY_TEXT, st.integers(1, 40))
def test_wrapped_lines_are_printable_and_no_wider_than_the_window(text: str, width: int) -> None:
    for made in wrapped(text, width):
        assert made.plain.isprintable()
        # A character of two cells cannot be narrower than itself.
        assert cell_len(made.plain) <= max(width, 2)


@given(ANY_TEXT, st.integers(2, 40))
def test_wrapping_loses_nothing_but_blanks_at_the_breaks(text: str, width: int) -> None:
    whole = "".join(made.plain for made in wrapped(text, 10**6))
    broken = "".join(made.plain for made in wrapped(text, width))
    assert broken.replace(" ", "") == whole.replace(" ", "")


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_that_could_steer_a_terminal_is_left(hostile: str) -> None:
    shown = [styled(f"a{hostile}b"), *wrapped(f"a{hostile}b", 40)]
    for made in shown:
        assert made.plain.isprintable()
        assert "\ufe0f" not in made.plain


def test_markup_is_text_like_any_other() -> None:
    assert styled("[bold]x[/bold] [@click=app.quit]y[/]").plain == "[bold]x[/bold] [@click=app.quit]y[/]"
    assert [made.plain for made in wrapped("[red]x[/]", 20)] == ["[red]x[/]"]


def test_lines_break_between_words_and_keep_their_indentation() -> None:
    assert [made.plain.rstrip() for made in wrapped("one two three\n    four five", 9)] == [
        "one two",
        "three",
        "    four",
        "five",
    ]


def test_a_word_longer_than_the_window_is_broken_inside() -> None:
    assert [made.plain for made in wrapped("a" * 10, 4)] == ["aaaa", "aaaa", "aa"]


def test_wide_characters_count_as_two_cells() -> None:
    assert [made.plain for made in wrapped("日本語日本", 4)] == ["日本", "語日", "本"]


def test_marks_on_one_letter_without_end_are_broken_too() -> None:
    pieces = [made.plain for made in wrapped("a" + "\u0301" * 1000, 10)]
    assert max(map(len, pieces)) <= 40


def test_what_is_searched_for_is_marked_in_any_case_and_across_a_break() -> None:
    def marked(text: str, width: int, query: str) -> list[list[str]]:
        lines = wrapped(text, width, query=query)
        return [[line.plain[one.start : one.end] for one in line.spans if one.style == "match"] for line in lines]

    assert marked("the Answer answers", 8, "answer") == [[], ["Answer"], ["answer"]]
    assert marked("abcdef", 4, "de") == [["d"], ["e"]]


@given(st.text(max_size=30), st.integers(2, 20), st.booleans(), st.booleans())
def test_a_cell_has_exactly_its_width(text: str, width: int, right: bool, both_ends: bool) -> None:
    assert cell_len(fitted(plain(text), width, right=right, both_ends=both_ends)) == width


def test_of_a_long_text_both_ends_are_shown() -> None:
    assert fitted("What is the sum of 17 and 4?", 12, both_ends=True) == "Wha…7 and 4?"


COLUMNS: list[Column[object]] = [
    Column("a", 4, str),
    Column("b", 6, str, rank=2),
    Column("c", 5, str, stretch=True),
    Column("d", 3, str, rank=1),
]


def test_where_there_is_room_one_column_takes_it() -> None:
    assert [(column.title, width) for column, width in layout(COLUMNS, 40)] == [("a", 4), ("b", 6), ("c", 24), ("d", 3)]


def test_the_columns_of_highest_rank_go_first() -> None:
    assert [(column.title, width) for column, width in layout(COLUMNS, 15)] == [("a", 4), ("c", 6), ("d", 3)]
    assert [column.title for column, _ in layout(COLUMNS, 10)] == ["a", "c"]


def test_columns_stand_side_by_side_each_as_far_as_it_reaches() -> None:
    lines = side_by_side([[styled("a"), styled("b" * 20)], [styled("c")]], 20)
    assert [line.plain for line in lines] == [" a       │ c       ", " bbbbbbbb│         "]
