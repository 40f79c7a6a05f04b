"""Reading a log that grows, in one process: writing between two looks of the reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from whet.errors import RunError
from whet.runs.following import read_log
from whet.runs.lock import DirectoryLock


def test_a_log_is_followed_into_its_next_file_until_the_run_ends(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "run.log"
    log.parent.mkdir()
    log.with_name("run.log.1").write_text("zero\n")
    log.write_text("one\ntw")
    lock = DirectoryLock(tmp_path)
    events = iter([lambda: log.open("a").write("o\n"), lambda: _begin_another(log), lock.release])
    lines = list(read_log(tmp_path, follow=True, wait=lambda _: next(events)()))
    assert lines == ["zero", "one", "two", "three", "four"]


def _begin_another(log: Path) -> None:
    with log.open("a") as file:
        file.write("three\n")
    log.rename(log.with_name("run.log.1"))
    log.write_text("four")


def test_a_run_without_a_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"has no log: .*run\.log is missing"):
        list(read_log(tmp_path))
