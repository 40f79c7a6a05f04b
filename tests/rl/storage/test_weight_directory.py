"""The hand-over directory is private, removed afterwards, and a killed run's is swept up by the next."""

import os
import subprocess
import sys
from pathlib import Path

from whet.rl.storage.weight_directory import sweep, weights_directory


def test_the_directory_is_gone_when_the_block_ends() -> None:
    with weights_directory() as path:
        assert path.is_dir()
        assert path.stat().st_mode & 0o077 == 0
    assert not path.exists()


def test_what_a_dead_process_left_is_removed_and_a_live_ones_stays(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = tmp_path / f"whet-weights-{dead.pid}-abc"
    live = tmp_path / f"whet-weights-{os.getpid()}-abc"
    other = tmp_path / "whet-weights-notes"
    for path in (left, live, other):
        path.mkdir()
    assert sweep(tmp_path) == [left]
    assert sorted(tmp_path.iterdir()) == sorted([live, other])
