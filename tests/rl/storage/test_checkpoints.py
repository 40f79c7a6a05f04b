"""A checkpoint is whole or it is not there, and nothing that happens to one harms another."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whet.errors import RunError, TrainingError
from whet.rl.storage import checkpoints
from whet.rl.storage.checkpoints import fault_of, load_checkpoint, newest_checkpoint, save_checkpoint


def writer(text):
    def write(directory):
        (directory / "weights.bin").write_bytes(text.encode())
        (directory / "inner").mkdir()
        (directory / "inner" / "state.json").write_text("{}")

    return write


@pytest.fixture
def root(tmp_path):
    return tmp_path / "checkpoints"


def steps(root):
    return sorted(int(path.name.removeprefix("step_")) for path in root.glob("step_*"))


def test_what_was_written_can_be_read_back_and_verifies(root):
    path = save_checkpoint(root, 3, writer("abc"), keep=2)
    found, passed_over = newest_checkpoint(root)
    assert found is not None
    assert (found.step, found.path, passed_over) == (3, path, [])
    assert (path / "weights.bin").read_text() == "abc"
    assert load_checkpoint(root, 3) == found


def test_there_is_none_in_a_directory_that_does_not_exist(root):
    assert newest_checkpoint(root) == (None, [])


def test_only_the_newest_are_kept_by_number_not_by_name(root):
    for step in (8, 9, 10, 11):
        save_checkpoint(root, step, writer("x"), keep=2)
    assert steps(root) == [10, 11]


def test_saving_a_step_again_replaces_it(root):
    save_checkpoint(root, 1, writer("old"), keep=3)
    save_checkpoint(root, 1, writer("new"), keep=3)
    assert (root / "step_1" / "weights.bin").read_text() == "new"
    assert fault_of(root / "step_1") is None


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: (path / "weights.bin").unlink(), "weights.bin is missing"),
        (lambda path: os.truncate(path / "weights.bin", 2), "2 bytes instead of 3"),
        (lambda path: (path / "weights.bin").write_text("abd"), "damaged"),
        (lambda path: (path / "manifest.json").unlink(), "no manifest"),
        (lambda path: os.truncate(path / "manifest.json", 20), "manifest is damaged"),
        (lambda path: shutil.rmtree(path / "inner"), "state.json is missing"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_with_its_reason(root, damage, reason):
    save_checkpoint(root, 1, writer("abc"), keep=5)
    damage(save_checkpoint(root, 2, writer("abc"), keep=5))
    found, passed_over = newest_checkpoint(root)
    assert found is not None
    assert found.step == 1
    assert len(passed_over) == 1
    assert "step_2" in passed_over[0]
    assert reason in passed_over[0]
    with pytest.raises(RunError, match="Choose another step"):
        load_checkpoint(root, 2)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_flipped_bit_of_any_file_is_noticed(tmp_path, data):
    root = tmp_path / "flips"
    path = save_checkpoint(root, 1, writer("some bytes"), keep=1)
    names = sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file() and p.name != "manifest.json")
    name = data.draw(st.sampled_from(names))
    content = bytearray((path / name).read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (path / name).write_bytes(content)
    assert newest_checkpoint(root)[0] is None


def test_a_full_disk_says_where_and_leaves_older_checkpoints_alone(root):
    save_checkpoint(root, 1, writer("abc"), keep=1)

    def full(directory):
        (directory / "weights.bin").write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(TrainingError, match=r"step_2: cannot write the checkpoint: No space left on device"):
        save_checkpoint(root, 2, full, keep=1)
    assert steps(root) == [1]
    assert newest_checkpoint(root)[0] is not None
    assert list(root.glob(".*")) == []


def test_an_fsync_that_fails_is_a_checkpoint_that_failed(root, monkeypatch):
    save_checkpoint(root, 1, writer("abc"), keep=1)

    def broken(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(checkpoints, "sync", broken)
    with pytest.raises(TrainingError, match="Input/output error"):
        save_checkpoint(root, 2, writer("abc"), keep=1)
    assert steps(root) == [1]


def test_a_writer_that_fails_in_its_own_way_leaves_nothing_behind(root):
    def fail(directory):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(root, 1, fail, keep=1)
    assert list(root.iterdir()) == []


def test_a_process_killed_while_writing_leaves_the_older_checkpoint_and_is_swept_up_after(root):
    save_checkpoint(root, 1, writer("abc"), keep=2)
    script = """
        import os, signal, sys
        from pathlib import Path
        from whet.rl.storage.checkpoints import save_checkpoint

        def write(directory):
            (directory / "weights.bin").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)

        save_checkpoint(Path(sys.argv[1]), 2, write, keep=2)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(root)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (root / ".step_2.tmp").is_dir()
    found, passed_over = newest_checkpoint(root)
    assert found is not None
    assert (found.step, passed_over) == (1, [])
    save_checkpoint(root, 3, writer("abc"), keep=2)
    assert not (root / ".step_2.tmp").exists()


def test_asking_for_a_step_that_is_not_there_names_those_that_are(root):
    for step in (5, 10):
        save_checkpoint(root, step, writer("x"), keep=5)
    with pytest.raises(RunError, match="no checkpoint of step 7; there are: 5, 10"):
        load_checkpoint(root, 7)
