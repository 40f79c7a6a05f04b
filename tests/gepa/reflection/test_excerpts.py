"""Long texts are cut where it hurts least, and say what is missing."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from whet.gepa.reflection.prompt import excerpt, fit, shares


def test_a_text_that_fits_stays_as_it_is() -> None:
    assert excerpt("as it is", 8) == "as it is"


def test_of_a_long_text_head_and_tail_stay_and_what_is_missing_is_counted() -> None:
    text = "".join(f"{number:04}" for number in range(1000))
    cut = excerpt(text, 200)
    head, tail = cut.split(re.search(r" \[\.\.\. .* left out \.\.\.\] ", cut)[0])
    assert text.startswith(head)
    assert text.endswith(tail)
    assert f"[... {4000 - len(head) - len(tail):,} characters left out ...]" in cut
    assert len(head) > len(tail) > 0
    assert 190 <= len(cut) <= 205


@given(st.lists(st.integers(0, 1000)), st.integers(-10, 5000))
def test_shares_are_what_is_wanted_or_equal_and_leave_nothing_that_is_wanted(sizes: list[int], room: int) -> None:
    given = shares(sizes, room)
    assert all(0 <= one <= size for one, size in zip(given, sizes, strict=True))
    assert sum(given) == min(sum(sizes), max(0, room)) or min(sizes) >= 0
    cut = [one for one, size in zip(given, sizes, strict=True) if one < size]
    if cut:
        assert sum(given) == max(0, room)
        assert max(cut) - min(cut) <= 1
        assert max(given) - min(cut) <= 1


def test_short_texts_stay_whole_beside_a_long_one() -> None:
    short, cut, other = fit(["short", "x" * 5000, "as short"], 1000)
    assert (short, other) == ("short", "as short")
    assert cut is not None
    assert 900 < len(cut) <= 1000


def test_of_very_many_texts_those_in_the_middle_go() -> None:
    fitted = fit([f"{number} " + "x" * 500 for number in range(100)], 2000)
    kept = [number for number, text in enumerate(fitted) if text is not None]
    assert 2 < len(kept) < 100
    assert kept[0] == 0
    assert kept[-1] == 99
    assert sum(len(text) for text in fitted if text) <= 2100


@given(st.lists(st.text(max_size=600), max_size=30), st.integers(0, 4000))
def test_what_fits_keeps_to_the_room_and_the_ends(texts: list[str], room: int) -> None:
    fitted = fit(texts, room)
    assert len(fitted) == len(texts)
    if sum(map(len, texts)) <= room:
        assert fitted == texts
    if texts:
        assert fitted[0] is not None
        assert fitted[-1] is not None
