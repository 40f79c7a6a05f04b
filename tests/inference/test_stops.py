"""Stop strings in a text that arrives token by token."""

from __future__ import annotations

import pytest

from whet.inference.stops import StopWatcher, cut_at_stop


def decode(ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


def first_stop(text: str, *stops: str) -> int | None:
    watcher = StopWatcher(stops, decode)
    return next((i + 1 for i, byte in enumerate(text.encode()) if watcher.push(byte)), None)


@pytest.mark.parametrize(
    ("text", "stops", "end"),
    [
        ("hello world", ("lo w",), 7),
        ("aab", ("ab",), 3),
        ("abcabd", ("abd",), 6),
        ("one two", ("two", "ne"), 3),
        ("schön", ("ö",), 5),
        ("x" * 500 + "END", ("END",), 503),
        ("nothing", ("xyz",), None),
        ("nothing", ("",), None),
    ],
)
def test_a_row_ends_with_the_token_that_completes_a_stop(text: str, stops: tuple[str, ...], end: int | None) -> None:
    assert first_stop(text, *stops) == end


def test_the_message_ends_before_the_first_stop() -> None:
    assert cut_at_stop("one two three", ("three", "two")) == "one "
    assert cut_at_stop("one two three", ("four", "")) == "one two three"
