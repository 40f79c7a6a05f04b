"""The lock on a run's directory, and the state that it decides."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whet.errors import RunError
from whet.runs.lock import LOCK, DirectoryLock, evaluation_state, is_locked, state_of


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
