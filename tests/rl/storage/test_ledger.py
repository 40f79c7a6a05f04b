"""The ledger records each group once, survives a torn line, and forgets on request."""

import errno
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whet.errors import RunError, TrainingError
from whet.rl.storage.records import Ledger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def test_what_was_appended_is_there_when_the_file_is_opened_again(path):
    Ledger(path).append(1, ["a", "b"])
    ledger = Ledger(path)
    ledger.append(2, ["c"])
    assert Ledger(path).steps == {1: ["a", "b"], 2: ["c"]}
    assert Ledger(path).step_of("c") == 2
    assert Ledger(path).step_of("d") is None


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(1, 30))
def test_a_last_line_torn_anywhere_is_dropped_and_the_step_can_be_recorded_again(path, cut):
    path.unlink(missing_ok=True)
    ledger = Ledger(path)
    ledger.append(1, ["a"])
    whole = path.stat().st_size
    ledger.append(2, ["b", "c"])
    os.truncate(path, max(whole, path.stat().st_size - cut))
    again = Ledger(path)
    assert again.steps == {1: ["a"]}
    again.append(2, ["b", "c"])
    assert Ledger(path).steps == {1: ["a"], 2: ["b", "c"]}


def test_a_group_is_trained_once(path):
    ledger = Ledger(path)
    ledger.append(1, ["a"])
    with pytest.raises(RunError, match=r"group a was trained in step 1"):
        ledger.append(2, ["b", "a"])
    with pytest.raises(RunError, match="twice"):
        ledger.append(2, ["b", "b"])
    with pytest.raises(RunError, match="step 1 is there already"):
        ledger.append(1, ["c"])
    assert Ledger(path).steps == {1: ["a"]}


def test_a_group_that_is_trained_twice_is_found_when_the_file_is_read_too(path):
    path.write_text('{"step": 1, "groups": ["1", "2"]}\n{"step": 2, "groups": ["3", "2"]}\n')
    with pytest.raises(RunError, match=r"step 2 would train a group twice \(group 2 was trained in step 1\)"):
        Ledger(path)


def test_resuming_forgets_later_steps_and_frees_their_groups(path):
    ledger = Ledger(path)
    for step, group in enumerate("abc", start=1):
        ledger.append(step, [group])
    ledger.truncate_after(1)
    ledger.append(2, ["c"])
    assert Ledger(path).steps == {1: ["a"], 2: ["c"]}


def test_truncating_an_empty_ledger_is_nothing_special(path):
    Ledger(path).truncate_after(0)
    assert Ledger(path).steps == {}


def test_damage_in_the_middle_is_not_a_crash_and_is_refused(path):
    path.write_text('{"step": 1, "groups": ["a"]}\nrubbish\n{"step": 2, "groups": ["b"]}\n')
    with pytest.raises(RunError, match="line 2 is damaged"):
        Ledger(path)


def test_a_full_disk_records_nothing_and_says_so(path, monkeypatch):
    ledger = Ledger(path)
    ledger.append(1, ["a"])

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(TrainingError, match="cannot record step 2: No space left on device"):
            ledger.append(2, ["b"])
    assert Ledger(path).steps == {1: ["a"]}
    ledger.append(2, ["b"])
    assert Ledger(path).steps == {1: ["a"], 2: ["b"]}
