"""Rows that are written and fsynced by a thread, and put in order at the end."""

from __future__ import annotations

import errno
import io
import os
import resource
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.errors import RunError
from whet.rollouts.row_log import RowLog, put_in_order, read_rows, row_at


def line(number: int, padding: int = 0) -> bytes:
    return b'{"n": %d, "x": "%s"}\n' % (number, b"x" * padding)


@pytest.fixture
def log(tmp_path: Path) -> RowLog:
    return RowLog(tmp_path)


def test_flush_writes_rows_in_order(log: RowLog) -> None:
    for number in range(200):
        log.append([line(number)])
    log.flush()
    assert log.path.read_bytes() == b"".join(map(line, range(200)))
    assert log.saved == 200
    log.close()


def test_a_row_is_saved_once_it_is_fsynced_and_not_before(log: RowLog, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, written, go_on = os.fsync, threading.Event(), threading.Event()

    def slow(descriptor: int) -> None:
        written.set()
        go_on.wait()
        fsync(descriptor)

    monkeypatch.setattr("whet.rollouts.row_log.SECONDS_AT_MOST", 0.0)
    monkeypatch.setattr("whet.rollouts.row_log.os.fsync", slow)
    log.append([line(0)])
    assert written.wait(timeout=60)
    assert (log.path.read_bytes(), log.saved) == (line(0), 0)
    go_on.set()
    log.flush()
    assert log.saved == 1
    log.close()


def opened_by(monkeypatch: pytest.MonkeyPatch, file: type[io.FileIO]) -> None:
    monkeypatch.setattr("whet.rollouts.row_log.open", lambda path, mode, buffering: file(path, mode), raising=False)


def test_many_rows_share_an_fsync(log: RowLog, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, calls = os.fsync, []
    monkeypatch.setattr("whet.rollouts.row_log.os.fsync", lambda descriptor: (calls.append(0), fsync(descriptor)))
    for number in range(640):
        log.append([line(number)])
    log.flush()
    assert 1 <= len(calls) <= 11
    log.close()


def test_a_row_may_be_written_at_once_and_share_its_fsync_with_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, written, fsyncs = os.fsync, threading.Semaphore(0), []

    class Watched(io.FileIO):
        def write(self, data: Any) -> int:
            count = super().write(data)
            written.release()
            return count

    opened_by(monkeypatch, Watched)
    monkeypatch.setattr("whet.rollouts.row_log.os.fsync", lambda descriptor: (fsyncs.append(0), fsync(descriptor)))
    log = RowLog(tmp_path, seconds=0.0, synced_s=3600.0)
    fsyncs.clear()  # of the directory
    for number in range(3):
        log.append([line(number)])
        assert written.acquire(timeout=60)
        assert log.path.read_bytes() == b"".join(map(line, range(number + 1)))
    assert (log.saved, fsyncs) == (0, [])
    log.flush()
    assert (log.saved, fsyncs) == (3, [0])
    log.append([line(3)])
    log.close()
    assert (log.saved, fsyncs) == (4, [0, 0])


def test_rows_are_fsynced_without_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RowLog(tmp_path, seconds=0.0, synced_s=0.01)
    fsync, saved = os.fsync, threading.Event()
    monkeypatch.setattr("whet.rollouts.row_log.os.fsync", lambda descriptor: (fsync(descriptor), saved.set()))
    log.append([line(0)])
    assert saved.wait(timeout=60)
    log.close()


def test_a_disk_that_is_full_keeps_what_was_written_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = threading.Event()

    class NearlyFull(io.FileIO):
        def write(self, data: Any) -> int:
            if not written.is_set():
                count = super().write(data)
                written.set()
                return count
            if self.tell() > len(line(0)):
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data[:12])

    opened_by(monkeypatch, NearlyFull)
    log = RowLog(tmp_path, seconds=0.0, synced_s=3600.0)
    log.append([line(0)])
    assert written.wait(timeout=60)
    log.append([line(1)])
    with pytest.raises(RunError, match=r"No space left on device.*; the row before is kept"):
        log.flush()
    log.close()
    assert log.path.read_bytes() == line(0)


def test_a_disk_that_is_full_from_the_beginning_keeps_nothing_and_says_so(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    log = RowLog(tmp_path)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, hard))
        log.append([line(0)])
        with pytest.raises(RunError, match=r"cannot write results .*; no row is saved"):
            log.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    log.close()
    assert log.path.read_bytes() == b""


def test_where_each_row_begins_is_told_when_it_is_appended(log: RowLog) -> None:
    offsets = [*log.append([line(0, 5), line(1)]), *log.append([line(2, 9)])]
    log.flush()
    with log.path.open("rb") as file:
        assert [row_at(file, offset) for offset in reversed(offsets)] == [line(2, 9), line(1), line(0, 5)]
    assert [offset for offset, _ in read_rows(log.path)] == offsets
    log.close()


def test_closing_saves_what_is_pending(log: RowLog) -> None:
    log.append([line(0)])
    log.close()
    assert log.path.read_bytes() == line(0)


def test_a_torn_line_is_cut_off_before_anything_is_appended(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_bytes(line(0) + line(1)[:-4])
    log = RowLog(tmp_path)
    log.append([line(2)])
    log.close()
    assert (tmp_path / "results.jsonl").read_bytes() == line(0) + line(2)


def test_a_full_disk_is_one_clear_line_and_what_was_saved_stays_whole(
    log: RowLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append([line(0)])
    log.flush()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("whet.rollouts.row_log.os.fsync", full)
    log.append([line(1)])
    with pytest.raises(RunError, match=r"No space left on device.*continue with --resume"):
        log.flush()
    with pytest.raises(RunError, match="cannot write results"):
        log.append([line(2)])
    log.close()
    assert (log.path.read_bytes(), log.saved) == (line(0), 1)


@settings(max_examples=25, deadline=None)
@given(numbers=st.permutations(range(12)), dropped=st.integers(0, 11))
def test_rows_are_put_in_order_and_those_without_a_place_are_dropped(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], dropped: int
) -> None:
    path = tmp_path_factory.mktemp("order") / "results.jsonl"
    path.write_bytes(b"".join(line(number, number) for number in numbers))
    offsets = dict(zip(numbers, (offset for offset, _ in read_rows(path)), strict=True))
    put_in_order(path, [offsets[number] for number in range(dropped)])
    assert path.read_bytes() == b"".join(line(number, number) for number in range(dropped))
    assert [file.name for file in path.parent.iterdir()] == ["results.jsonl"]


def test_a_file_that_is_in_order_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(line(0) + line(1))
    before = path.stat().st_ino
    put_in_order(path, [0, len(line(0))])
    assert path.stat().st_ino == before


def test_what_cannot_be_put_in_order_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(line(0) + line(1))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("whet.rollouts.row_log.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        put_in_order(path, [len(line(0)), 0])
    assert path.read_bytes() == line(0) + line(1)
    assert [file.name for file in tmp_path.iterdir()] == ["results.jsonl"]
