"""The lock on a run's directory, and the state that it decides."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

import pytest

from whet.errors import RunError
from whet.records.lock import LOCK, DirectoryLock, evaluation_state, is_held, is_locked, state_of, take


def test_a_directory_has_one_writer_until_the_lock_is_released(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(RunError, match="is in use: another process is training in it"):
        DirectoryLock(tmp_path, "training in")
    lock.release()
    DirectoryLock(tmp_path).release()


def test_the_lock_file_names_its_process_also_after_another_one_was_refused(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("123456789")  # of an earlier process
    lock = DirectoryLock(tmp_path)
    with pytest.raises(RunError):
        DirectoryLock(tmp_path)
    assert (tmp_path / LOCK).read_text() == str(os.getpid())
    lock.release()


def look(directory: Path) -> IO[str]:
    """What a process holds for a moment that asks whether a run is locked."""
    file = (directory / LOCK).open("r")
    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return file


def test_a_run_starts_while_another_process_looks_at_its_lock(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    looks = [look(tmp_path), look(tmp_path)]
    lock = DirectoryLock(tmp_path, sleep=lambda _: looks.pop().close())
    assert not looks
    assert is_locked(tmp_path)
    lock.release()


def test_the_writer_that_comes_first_while_both_wait_for_a_look_has_the_directory(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    looking = look(tmp_path)
    taken: list[DirectoryLock] = []

    def another_one_is_quicker(_: float) -> None:
        looking.close()
        taken.append(DirectoryLock(tmp_path))

    with pytest.raises(RunError, match="is in use"):
        DirectoryLock(tmp_path, sleep=another_one_is_quicker)
    assert len(taken) == 1
    taken[0].release()


@pytest.mark.parametrize(
    ("saved", "unlocked", "locked"),
    [
        ("running", "died", "running"),
        ("starting", "died", "starting"),
        ("finished", "finished", "finished"),
        ("interrupted", "interrupted", "interrupted"),
        (None, "unknown", "unknown"),
    ],
)
def test_a_run_that_has_not_ended_and_has_no_process_died(
    saved: str | None, unlocked: str, locked: str, tmp_path: Path
) -> None:
    assert state_of(tmp_path, {"state": saved}) == unlocked
    lock = DirectoryLock(tmp_path)
    assert is_locked(tmp_path)
    assert state_of(tmp_path, {"state": saved}) == locked
    lock.release()


def test_an_evaluation_without_a_state_has_finished(tmp_path: Path) -> None:
    assert evaluation_state(tmp_path, {}) == "finished"
    assert evaluation_state(tmp_path, {"state": "running"}) == "unfinished"


def test_other_users_may_look_at_the_lock_of_a_run_and_not_at_others(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        DirectoryLock(tmp_path).release()
        descriptor = take(tmp_path / "alone")
    finally:
        os.umask(before)
    assert (tmp_path / LOCK).stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "alone").stat().st_mode & 0o777 == 0o600
    assert descriptor is not None
    assert take(tmp_path / "alone") is None
    assert is_held(tmp_path / "alone")
    os.close(descriptor)
    assert not is_held(tmp_path / "alone")
