"""Keys, as terminals send them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from whet.display.live.screen import Keyboard


@pytest.fixture
def pipe() -> Iterator[tuple[Keyboard, int]]:
    reading, writing = os.pipe()
    yield Keyboard(reading), writing
    for descriptor in (reading, writing):
        os.close(descriptor)


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[B\x1b[C\x1b[D", ["up", "down", "right", "left"]),
        (b"\x1bOC\x1bOD", ["right", "left"]),
        (b"n\x1b[Cs", ["n", "right", "s"]),
        (b"\x1b[5~\x1b[1;5C", []),  # page up, Ctrl-right: keys that mean nothing here
        ("ü".encode(), ["ü"]),
    ],
)
def test_keys_are_told_by_name_or_character(pipe: tuple[Keyboard, int], sent: bytes, keys: list[str]) -> None:
    keyboard, writing = pipe
    os.write(writing, sent)
    assert keyboard.read() == keys


def test_a_key_that_arrives_in_pieces_is_one_key(pipe: tuple[Keyboard, int]) -> None:
    keyboard, writing = pipe
    os.write(writing, b"s\x1b[")
    assert keyboard.read() == ["s"]
    os.write(writing, b"C")
    assert keyboard.read() == ["right"]


def test_no_keys_can_come_from_an_input_that_has_ended() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    with pytest.raises(EOFError):
        Keyboard(reading).read()
    os.close(reading)
