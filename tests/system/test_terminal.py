"""Hostile text made harmless, and small curves."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.system.terminal import duration, safe_lines, safe_text, sparkline


@given(st.text(st.characters(), max_size=60))
def test_no_text_keeps_a_character_that_moves_or_reorders_anything(text: str) -> None:
    safe = safe_text(text, 40)
    assert len(safe) <= 40
    assert safe.isprintable()
    safe.encode(sys.getdefaultencoding())


@given(st.text(st.characters(), max_size=60))
def test_lines_are_as_harmless_as_one_line(text: str) -> None:
    for line in safe_lines(text):
        assert line.isprintable()
        line.encode(sys.getdefaultencoding())


def test_lines_keep_their_breaks_and_their_columns() -> None:
    assert safe_lines("a\tb\r\n\n  c\r!") == ["a   b", "", "  c\N{REPLACEMENT CHARACTER}!"]


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\x9b31m", "\r", "\b", "\u202e", "\u2066", "\u200b", "\u2028", "\x00"])
def test_every_kind_of_control_is_replaced(hostile: str) -> None:
    assert safe_text(f"a{hostile[0]}b") == "a\N{REPLACEMENT CHARACTER}b"


def test_a_line_break_is_shown_not_made() -> None:
    assert safe_text("one\r\ntwo\nthree") == "one⏎two⏎three"


def test_long_text_ends_in_an_ellipsis() -> None:
    assert safe_text("abcdef", 4) == "abc…"


def test_a_curve_rises_with_its_values() -> None:
    assert sparkline([0.0, 0.25, 0.5, 0.75, 1.0], low=0.0, high=1.0) == "▁▃▅▇█"


def test_a_long_curve_is_averaged_into_its_width() -> None:
    curve = sparkline([float(step) for step in range(1000)], width=10)
    assert len(curve) == 10
    assert list(curve) == sorted(curve)


def test_a_flat_curve_and_an_empty_one_are_drawn() -> None:
    assert sparkline([0.5, 0.5]) == "▁▁"
    assert sparkline([]) == ""


@pytest.mark.parametrize(("seconds", "text"), [(41.2, "41 s"), (125.0, "2:05"), (3723.0, "1:02:03")])
def test_durations_read_as_people_write_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
