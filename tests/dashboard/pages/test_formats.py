"""How values look on a page."""

from __future__ import annotations

import pytest

from whet.display.page.formats import clock, compact, iso, lasted, percent, size, sparkline


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.123456, "0.1235"), (1234.5, "1,234"), (24, "24"), (5.0, "5"), (3.7e-13, "3.7e-13")),
        *((-1e300, "-1e+300"), (None, "-"), ("x", "-")),
    ],
)
def test_numbers_are_as_short_as_their_digits_allow(value: object, text: str) -> None:
    assert compact(value) == text


def test_moments_and_lengths() -> None:
    assert (iso(0.0), clock(0.0), lasted(125.4)) == ("1970-01-01T00:00:00Z", "1970-01-01 00:00 UTC", "2:05")
    assert (iso(None), clock(None), lasted(None), clock(1e20)) == ("", "-", "-", "-")


def test_bytes_have_a_unit() -> None:
    assert [size(count) for count in (None, 999, 1500, 123_456_789, 5e12)] == [
        "-",
        "999 bytes",
        "1.5 KB",
        "123 MB",
        "5,000 GB",
    ]


def test_small_line_spans_its_box_and_needs_two_points() -> None:
    assert sparkline([0.0, None, 1.0]) == "M1.0,22.0L91.0,2.0"
    assert sparkline([None, 1.0]) == ""
    assert sparkline([2.0, 2.0]) == "M1.0,12.0L91.0,12.0"


def test_what_rounding_leaves_of_a_constant_is_a_straight_line() -> None:
    line = sparkline([0.1, 0.1 + 2e-17, 0.1 - 2e-17, 0.1])
    assert {point.split(",")[1] for point in line[1:].split("L")} == {"12.0"}


def test_a_share_is_neither_none_nor_all_where_it_is_neither() -> None:
    assert [percent(share) for share in (0.001, 0.25, 0.999)] == ["under 1 %", "25 %", "over 99 %"]
