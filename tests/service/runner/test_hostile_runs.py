"""Runs that attack their machine, as root and as an ordinary user, reach nothing but their own.

`hostile.py` has the attacks. An ordinary user may make no control groups, and has one user id for all runs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from whet.service.runner import isolation
from whet.system import untrusted

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
USER = 60_123
SHOWN = """
set -e
aside=$1; home=$2; user=$3; shift 3; number=0
while [ "$1" != -- ]; do
  mkdir "$aside/$number"; mount --bind "$1" "$aside/$number"; folders="$folders $1"; number=$((number + 1)); shift
done
shift
[ -z "$folders" ] || mount -t tmpfs -o mode=0755 none "$home"
number=0
for folder in $folders; do mkdir -p "$folder"; mount --move "$aside/$number" "$folder"; number=$((number + 1)); done
exec setpriv "--reuid=$user" "--regid=$user" --clear-groups --inh-caps=-all --bounding-set=-all -- "$@"
"""
"""Becomes another user, who finds Python where it is, also in a home that only its owner may enter."""


def as_ordinary_user(data: Path) -> Sequence[str]:
    if os.geteuid() != 0:
        return ()
    home, aside = Path.home(), data / "aside"
    aside.mkdir()
    folders = {path for path in (*isolation.python_folders(), Path(__file__).parents[2]) if path.is_relative_to(home)}
    outer = [path for path in folders if not any(path != one and path.is_relative_to(one) for one in folders)]
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", SHOWN, "sh", str(aside), str(home)]
    words += [str(USER), *map(str, outer), "--"]
    probe = [*words, "unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", "import whet"]
    tried = subprocess.run(probe, capture_output=True, check=False, text=True)
    if tried.returncode:
        pytest.skip(f"root cannot become an ordinary user here: {tried.stderr}")
    for path in aside.iterdir():
        path.rmdir()
    for path in (data, data / "hub.sqlite"):
        os.chown(path, USER, USER)
    return words


@pytest.fixture(scope="module", params=["root", "ordinary"])
def outcomes(request: pytest.FixtureRequest, apart: Any, empty_sqlite: bytes) -> Iterator[dict[str, Any]]:
    """What became of every attack. The folder is not pytest's, which only one user may enter."""
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("needs root: runs are other users than the runner")
    data = Path(tempfile.mkdtemp(prefix="whet-hostile-"))
    (data / "hub.sqlite").write_bytes(empty_sqlite)
    words = () if request.param == "root" else as_ordinary_user(data)
    home = data / "home"
    home.mkdir()
    (home / ".netrc").touch()
    environment = os.environ if request.param == "root" else {**os.environ, "HOME": str(home)}
    done = subprocess.run(
        [*words, sys.executable, str(SCRIPT), str(data)],
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    yield json.loads(done.stdout)
    untrusted.remove(data.parent, data.name)


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
    if name == "disk":  # one file, which the kernel limits
        assert found["used"][0] < GIB


def test_there_are_thirty_kinds() -> None:
    assert len(hostile.ATTACKS) + len(hostile.LIMITS) >= 30
    assert set(hostile.REASONS) == set(hostile.LIMITS)
