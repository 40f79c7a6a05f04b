"""Reading a log that grows, in one process: writing between two looks of the reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from whet.errors import RunError
from whet.records.lock import DirectoryLock
from whet.records.log import LogQuery, read_log


def test_a_log_is_followed_into_its_next_file_until_the_run_ends(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "run.log"
    log.parent.mkdir()
    log.with_name("run.log.1").write_text("zero\n")
    log.write_text("one\ntw")
    lock = DirectoryLock(tmp_path)
    events = iter([lambda: log.open("a").write("o\n"), lambda: _begin_another(log), lock.release])
    lines = list(read_log(tmp_path, LogQuery(), follow=True, wait=lambda _: next(events)()))
    assert lines == ["zero", "one", "two", "three", "four"]


def _begin_another(log: Path) -> None:
    with log.open("a") as file:
        file.write("three\n")
    log.rename(log.with_name("run.log.1"))
    log.write_text("four")


def test_a_run_without_a_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"has no log: .*run\.log is missing"):
        list(read_log(tmp_path, LogQuery()))


LINES = """\
2026-11-21T17:40:02+0000 INFO step 1/9  reward 0.5
2026-11-21T17:40:03+0000 WARNING torch: the disk is slow
    because of another process
2026-11-21T17:40:04+0000 ERROR whet: stopped
2026-11-21T17:40:05+0000 INFO step 2/9  reward 0.7
""".splitlines()


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        (LogQuery(), [0, 1, 2, 3, 4]),
        (LogQuery(level="WARNING"), [1, 2, 3]),
        (LogQuery(search="STEP"), [0, 4]),
        (LogQuery(since=1795282804.0), [3, 4]),
        (LogQuery(search="process", level="WARNING"), [2]),
    ],
)
def test_lines_by_text_level_and_time(query: LogQuery, numbers: list[int], tmp_path: Path) -> None:
    log = tmp_path / "logs" / "run.log"
    log.parent.mkdir()
    log.write_text("\n".join(LINES) + "\n")
    assert list(read_log(tmp_path, query)) == [LINES[number] for number in numbers]


def test_last_lines_are_shown_before_those_that_are_written_then(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "run.log"
    log.parent.mkdir()
    log.write_text("one\ntwo\nthree\n")
    assert list(read_log(tmp_path, LogQuery(limit=2, tail=True))) == ["two", "three"]
    lock = DirectoryLock(tmp_path)
    events = iter([lambda: log.open("a").write("four\nfive\nsix\n"), lock.release])
    lines = read_log(tmp_path, LogQuery(limit=1, tail=True), follow=True, wait=lambda _: next(events)())
    assert list(lines) == ["three", "four", "five", "six"]


def test_line_without_a_time_belongs_to_the_one_before_and_long_lines_are_whole(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "run.log"
    log.parent.mkdir()
    log.write_text(f"{LINES[0]}\nTraceback\n{LINES[3]}\n\n{'x' * 20_000}\ntorn")
    assert list(read_log(tmp_path, LogQuery(level="ERROR"))) == [LINES[3], "", "x" * 20_000, "torn"]
