"""Runs that attack their machine, as root and as an ordinary user, reach nothing but their own.

`hostile.py` has the attacks. The ordinary user is that of a user namespace, and without control groups, so that what
root has besides plays no part.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

pytestmark = [
    pytest.mark.parts,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of these system calls are those of x86-64"),
]
SCRIPT = Path(__file__).with_name("hostile.py")
SPEC = importlib.util.spec_from_file_location("hostile", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
hostile = sys.modules["hostile"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(hostile)
GIB = 1 << 30
LOG_BYTES = 2 * (8 << 20) + (1 << 20)
ORDINARY = 'mount -t tmpfs none /sys/fs/cgroup && exec unshare --user --map-user=1000 --map-group=1000 -- "$@"'
"""Of root in a user namespace: no control groups, then another user in a further namespace."""


def as_ordinary_user() -> Sequence[str]:
    if os.geteuid() != 0:
        return ()
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", ORDINARY, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("root cannot become an ordinary user of a namespace here")
    return words


@pytest.fixture(scope="module", params=["root", "ordinary"])
def outcomes(
    request: pytest.FixtureRequest, apart: Any, empty_sqlite: bytes, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What became of every attack."""
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("needs root: runs are other users than the runner")
    words = () if request.param == "root" else as_ordinary_user()
    data = tmp_path_factory.mktemp("hostile")
    (data / "hub.sqlite").write_bytes(empty_sqlite)
    done = subprocess.run(
        [*words, sys.executable, str(SCRIPT), str(data)], capture_output=True, text=True, timeout=3000, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", hostile.ATTACKS)
def test_attack_reaches_nothing_outside(outcomes: dict[str, Any], name: str) -> None:
    found = outcomes[name]
    assert not found["breach"], found["said"]
    assert found["harmed"] == []
    assert (found["state"], found["reason"]) == ("finished", ""), found["said"]
    assert found["log_bytes"] < LOG_BYTES


@pytest.mark.parametrize("name", hostile.LIMITS)
def test_run_that_exceeds_a_limit_fails_with_its_name(outcomes: dict[str, Any], name: str) -> None:
    found = outcomes[name]
    assert not found["breach"], found["said"]
    assert found["harmed"] == []
    assert found["state"] == "failed"
    assert found["reason"].startswith(hostile.REASONS[name])
    size, files = found["used"]
    assert size < GIB
    assert files < 20_000


def test_there_are_thirty_kinds() -> None:
    assert len(hostile.ATTACKS) + len(hostile.LIMITS) >= 30
    assert set(hostile.REASONS) == set(hostile.LIMITS)
