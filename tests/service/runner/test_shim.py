"""The shim by itself: a full disk, an attempt that was given up, a plan that never came."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from whet.service.runner.folders import AttemptFolder, read_object
from whet.service.runner.shim import GATE_HERE, ShimPlan

SHIM = [sys.executable, "-m", "whet.service.runner.shim"]

# In a mount namespace of its own: the folder of the attempt is a file system of 64 KiB, which the run's output fills.
FULL = """
import subprocess, sys, time
from pathlib import Path
from whet.system.children import began
from whet.service.runner.folders import AttemptFolder, read_object

folder = AttemptFolder(Path(sys.argv[1]))
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder.path], check=True)
shim = subprocess.Popen([sys.executable, "-m", "whet.service.runner.shim", folder.path], stdin=sys.stdin)
while "run" not in (found := read_object(folder.identity)) or began(found["run"]["pid"]):
    time.sleep(0.02)
for _ in range(20):
    assert not folder.exit.exists()
    assert shim.poll() is None
    time.sleep(0.02)
folder.output.write_bytes(b"")
shim.wait()
print(folder.exit.read_text())
"""


def plan(script: str) -> ShimPlan:
    return ShimPlan([GATE_HERE, "/bin/sh", "-c", script], "/", {"PATH": os.environ["PATH"]})


def test_an_end_is_written_once_the_disk_has_room(tmp_path: Path) -> None:
    own = ["unshare", "--user", "--map-root-user", "--mount"]
    tried = [*own, "mount", "-t", "tmpfs", "none", tmp_path]
    if shutil.which("unshare") is None or subprocess.run(tried, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted in a namespace here")
    done = subprocess.run(
        [*own, sys.executable, "-c", FULL, str(tmp_path)],
        input=plan("head -c 1000000 /dev/zero; exit 3").dumps(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    assert (ended["code"], ended["signal"]) == (3, None)
    assert ended["dropped"] > 900_000


def test_an_attempt_that_was_given_up_is_not_started(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path)
    folder.exit.write_text("{}")
    done = subprocess.run([*SHIM, tmp_path], input=plan("touch begun").dumps(), check=False)
    assert done.returncode == 0
    assert not folder.identity.exists()
    assert not folder.output.exists()


def test_without_a_plan_nothing_is_started(tmp_path: Path) -> None:
    done = subprocess.run([*SHIM, tmp_path], input=b"", check=False)
    assert done.returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_started_ends_and_is_said(tmp_path: Path) -> None:
    wrong = ShimPlan(["/no/such/program", GATE_HERE], "/", {})
    subprocess.run([*SHIM, tmp_path], input=wrong.dumps(), check=True)
    folder = AttemptFolder(tmp_path)
    assert read_object(folder.exit)["code"] == 127
    assert "/no/such/program" in folder.output.read_text()
