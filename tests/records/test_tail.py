"""A file of lines that grows, is cut, replaced or removed between two looks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from whet.records.tail import Tail, last_row


def lines(tail: Tail, directory: Path) -> list[bytes]:
    return [line for line, _ in tail.read(directory).lines]


@pytest.fixture
def tail(tmp_path: Path) -> Tail:
    (tmp_path / "rows").write_bytes(b"one\ntw")
    tail = Tail("rows", most=16)
    assert tail.read(tmp_path) == (False, [(b"one", 4)], False)
    return tail


def test_torn_line_waits_for_its_end(tail: Tail, tmp_path: Path) -> None:
    assert lines(tail, tmp_path) == []
    with (tmp_path / "rows").open("ab") as file:
        file.write(b"o\n\nfour\n")
    assert lines(tail, tmp_path) == [b"two", b"", b"four"]


def test_long_file_is_read_in_pieces_and_a_long_line_is_passed_over(tail: Tail, tmp_path: Path) -> None:
    with (tmp_path / "rows").open("ab") as file:
        file.write(b"o\n" + b"x" * 40 + b"\nend\n")
    found = [tail.read(tmp_path) for _ in range(5)]
    assert [line for one in found for line, _ in one.lines] == [b"two", b"xxxxxxxx", b"end"]
    assert [one.passed_over for one in found] == [False, True, True, False, False]
    assert tail.position == tail.size
    assert not tail.more


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"1\n"),
        lambda path: (path.with_name("new").write_bytes(b"1\n"), path.with_name("new").rename(path)),
    ],
    ids=["cut", "replaced"],
)
def test_another_file_is_read_from_its_beginning(change: Callable[[Path], object], tail: Tail, tmp_path: Path) -> None:
    change(tmp_path / "rows")
    assert tail.read(tmp_path) == (True, [(b"1", 2)], False)


def test_removed_file_is_read_again_when_it_is_there(tail: Tail, tmp_path: Path) -> None:
    (tmp_path / "rows").unlink()
    assert tail.read(tmp_path) == (True, [], False)
    assert tail.generation == ""
    (tmp_path / "rows").write_bytes(b"1\n")
    assert tail.read(tmp_path) == (False, [(b"1", 2)], False)


def test_skipped_lines_are_not_given(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(b"one\ntw")
    tail = Tail("rows")
    tail.skip(tmp_path)
    with (tmp_path / "rows").open("ab") as file:
        file.write(b"o\n")
    assert lines(tail, tmp_path) == [b"two"]


def test_link_is_not_followed(tail: Tail, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "rows")
    with pytest.raises(OSError, match="symbolic links"):
        Tail("link").read(tmp_path)
    assert last_row(tmp_path, "link") == {}


@pytest.mark.parametrize(
    ("content", "row"),
    [
        (b'{"a": 1}\n{"a": 2}\n', {"a": 2}),
        (b'{"a": 1}\n{"a": 2', {"a": 1}),
        (b'{"a": 1}', {}),
        (b"[1]\n", {}),
        (b"", {}),
        (b"x" * (1 << 18) + b'\n{"a": 1}\n', {"a": 1}),
        (b"x" * (1 << 19) + b"\n", {}),
    ],
)
def test_last_row_is_the_last_whole_one(content: bytes, row: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(content)
    assert last_row(tmp_path, "rows") == row
