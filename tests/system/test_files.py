"""Files that survive a kill: whole or absent, a torn last line cut off, valid JSON whatever is in it."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import pytest

from whet.errors import RunError
from whet.system.files import LineFile, json_line, read_lines, write_whole
from whet.system.untrusted import NOT_INSIDE, open_inside


def test_numbers_that_are_not_finite_become_null_at_any_depth() -> None:
    value = {"a": math.nan, "b": [1.0, math.inf, {"c": -math.inf}]}
    assert json.loads(json_line(value)) == {"a": None, "b": [1.0, None, {"c": None}]}


def test_text_no_encoding_can_hold_still_makes_one_line_of_ascii() -> None:
    line = json_line({"text": "lone \ud800 surrogate,   separators \x85 and\nnewlines"})
    assert line.isascii()
    assert line.count("\n") == 1
    assert json.loads(line)["text"].startswith("lone \ud800")


def test_a_torn_last_line_is_cut_off_when_the_file_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"ste')
    LineFile(path).append([{"step": 3}])
    assert [row["step"] for row in read_lines(path)] == [1, 2, 3]


def test_a_file_that_is_one_torn_line_becomes_empty(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"x" * 200_000)  # longer than one block of the search for the last newline
    LineFile(path)
    assert path.read_bytes() == b""


def test_a_torn_line_longer_than_a_block_leaves_the_lines_before_it(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"step": 1}\n' + b"x" * 200_000)
    LineFile(path)
    assert path.read_bytes() == b'{"step": 1}\n'


def test_reading_leaves_a_torn_last_line_out(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n{"a": 2')
    assert list(read_lines(path)) == [{"a": 1}]


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\nnonsense\n{"a": 3}\n')
    with pytest.raises(RunError, match=r"lines\.jsonl, line 2: not JSON"):
        list(read_lines(path))


def test_rows_that_are_not_wanted_are_dropped(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "lines.jsonl")
    file.append({"step": step} for step in range(5))
    file.keep(lambda row: row["step"] <= 2)
    assert [row["step"] for row in read_lines(file.path)] == [0, 1, 2]


def test_a_replacement_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "status.json"
    write_whole(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("whet.system.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_whole(path, "new")
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_rows_that_do_not_reach_the_disk_leave_no_part_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = LineFile(tmp_path / "rows.jsonl")
    rows.append([{"row": 1}])

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            rows.append([{"row": 2}])
    rows.append([{"row": 3}])
    assert list(read_lines(rows.path)) == [{"row": 1}, {"row": 3}]


def test_a_file_below_a_directory_is_opened_and_nothing_else(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside / "deep", outside):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"text")
    (inside / "link").symlink_to(outside / "file")
    (inside / "linked").symlink_to(outside)
    os.mkfifo(inside / "pipe")
    with open_inside(inside, "deep/file") as descriptor:
        assert os.read(descriptor, 9) == b"text"
    refused = (
        "link",
        "linked/file",
        "../outside/file",
        "deep/../../outside/file",
        str(outside / "file"),
        "deep",
        "pipe",
    )
    for name in refused:
        with pytest.raises(OSError, match="symbolic links") as found, open_inside(inside, name):
            pass
        assert found.value.errno == NOT_INSIDE, name
    with pytest.raises(FileNotFoundError), open_inside(inside, "deep/none"):
        pass


@pytest.mark.parametrize("ends", [100, 1_000, 10_000])
def test_the_ends_of_long_lines_are_whole_rows_in_order(ends: int, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(f'{{"step": {step:06}0}}\n'.replace(": 0", ": 1") for step in range(5_000)) + '{"ste')
    every = [row["step"] for row in read_lines(path)]
    steps = [row["step"] for row in read_lines(path, ends)]
    shown = ends // 18
    assert steps[: shown + 1] == every[: shown + 1]
    assert steps[shown + 1 :] == every[shown + 1 - len(steps) :]
    assert 2 * shown - 1 <= len(steps) <= 2 * shown + 1
    assert list(read_lines(path, 1 << 20)) == list(read_lines(path))


def test_a_damaged_row_at_the_end_of_long_lines_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"step": 1}\n' * 100 + "not JSON\n")
    with pytest.raises(RunError, match=r"lines\.jsonl, near its end: not JSON"):
        list(read_lines(path, 100))
    with pytest.raises(RunError, match=r"lines\.jsonl, line 101: not JSON"):
        list(read_lines(path))
