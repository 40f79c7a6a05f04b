"""Machines that fail, limits that strike and users without rights, with real parts throughout."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from whet.errors import ConfigError, SandboxError
from whet.sandboxes import pool, registry
from whet.sandboxes.bubblewrap import host as bubblewrap_host
from whet.sandboxes.bubblewrap.backend import BubblewrapBackend, BubblewrapSandbox
from whet.sandboxes.bubblewrap.launch import Launcher
from whet.sandboxes.permits import Permits
from whet.sandboxes.pool import SandboxPool, shared_pool
from whet.sandboxes.protocol import SandboxSpec

SPEC = SandboxSpec()


@pytest.fixture
def failing_bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bubblewrap: None) -> Path:
    """A `bwrap` that fails as often as there are lines in the file that is returned, and then is the real one."""
    failures = tmp_path / "failures"
    machine = bubblewrap_host.host()
    script = f"""#!/bin/sh
left=$(sed -n '$=' {failures})
if [ "${{left:-0}}" -gt 0 ]; then sed -i 1d {failures}; echo "no more namespaces" >&2; exit 1; fi
exec {machine.program} "$@"
"""
    program = tmp_path / "bwrap"
    program.write_text(script)
    program.chmod(0o755)
    failures.write_text("")
    as_this_user = Launcher(None, None, None)
    replaced = dataclasses.replace(machine, command=(str(program),), launcher=as_this_user)
    monkeypatch.setattr("whet.sandboxes.bubblewrap.backend.host", lambda: replaced)
    return failures


def test_a_bubblewrap_that_fails_twice_is_started_a_third_time(failing_bwrap: Path) -> None:
    async def run() -> str:
        failing_bwrap.write_text("1\n2\n")
        async with SandboxPool(BubblewrapBackend(), attempts=3, delay_s=0.0).lease(SPEC) as sandbox:
            return (await sandbox.exec("echo third")).stdout

    assert asyncio.run(run()) == "third\n"
    assert failing_bwrap.read_text() == ""


def test_a_bubblewrap_that_keeps_failing_is_an_error_with_its_words(failing_bwrap: Path) -> None:
    async def run() -> None:
        failing_bwrap.write_text("1\n2\n3\n")
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(SandboxError, match="did not start: no more namespaces"):
            await SandboxPool(BubblewrapBackend(), attempts=3, delay_s=0.0).acquire(SPEC)
        assert len(os.listdir("/proc/self/fd")) <= before + 1, "what a failed start had opened is closed"

    asyncio.run(run())


@pytest.mark.usefixtures("bubblewrap")
def test_environments_share_one_cap_of_real_sandboxes_and_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_permits", Permits(2))
    monkeypatch.setattr(pool, "_pools", {})
    order: list[str] = []
    most = 0

    async def use(owner: str) -> None:
        nonlocal most
        async with shared_pool("bubblewrap").lease(SPEC, owner=owner) as sandbox:
            order.append(owner)
            most = max(most, shared_pool("bubblewrap").leased)
            assert (await sandbox.exec(["true"])).ok

    async def run() -> None:
        greedy = [asyncio.ensure_future(use("greedy")) for _ in range(12)]
        await asyncio.sleep(0)
        await asyncio.gather(use("modest"), *greedy)

    asyncio.run(run())
    assert most == 2
    assert order.index("modest") <= 4


@pytest.mark.usefixtures("bubblewrap")
def test_an_expired_sandbox_gives_its_place_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "OVERTIME_S", 0.05)

    async def run() -> str:
        one = SandboxPool(BubblewrapBackend(), max_sandboxes=1)
        forgotten = await one.acquire(SandboxSpec(lifetime_s=0.3))
        async with one.lease(SPEC) as sandbox:
            assert forgotten.closed
            return (await sandbox.exec("echo next")).stdout

    assert asyncio.run(run()) == "next\n"


@pytest.mark.usefixtures("bubblewrap")
def test_sandbox_of_an_ended_loop_is_closed_by_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whet.sandboxes.permits.RECLAIM_S", 0.01)
    permits = Permits(1)

    async def leave() -> BubblewrapSandbox:
        left = await SandboxPool(BubblewrapBackend(), permits=permits).acquire(SPEC)
        assert isinstance(left, BubblewrapSandbox)
        return left

    async def take() -> None:
        async with SandboxPool(BubblewrapBackend(), permits=permits).lease(SPEC):
            return

    left = asyncio.run(leave())
    assert left.pid is not None
    ended = os.pidfd_open(left.pid)
    asyncio.run(take())
    assert select.select([ended], [], [], 60)[0]
    os.close(ended)


BACKEND = """
class Backend:
    name = "elsewhere"
    async def check(self): pass
    async def create(self, spec): raise RuntimeError(spec.cpus)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with an entry point, as pip would leave it in site-packages."""
    (tmp_path / "their_backend.py").write_text(BACKEND)
    metadata = tmp_path / "their_backend-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-backend\nVersion: 1.0\n")
    points = "[whet.sandboxes]\nelsewhere = their_backend:Backend\nbubblewrap = their_backend:Backend\n"
    (metadata / "entry_points.txt").write_text(points + "broken = their_backend:Absent\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("their_backend", None)


@pytest.mark.usefixtures("installed")
def test_a_backend_of_an_installed_package_is_used_by_its_name_alone() -> None:
    assert "elsewhere" in registry.backend_names()
    backend = registry.get_backend("elsewhere")
    with pytest.raises(RuntimeError, match=r"0\.25"):
        asyncio.run(backend.create(SandboxSpec(cpus=0.25)))
    assert isinstance(registry.get_backend("bubblewrap"), BubblewrapBackend), "not to be replaced"
    with pytest.raises(ConfigError, match=r"sandbox backend 'broken' .*does not load"):
        registry.get_backend("broken")


UNPRIVILEGED = """
import asyncio, os
from whet.sandboxes.bubblewrap.backend import BubblewrapBackend
from whet.sandboxes.protocol import SandboxSpec

async def main():
    async with await BubblewrapBackend().create(SandboxSpec(memory_bytes=100 << 20)) as sandbox:
        result = await sandbox.exec("id -u; cat /etc/shadow; python3 -c 'bytearray(1 << 30)'; echo done")
    print(os.getuid(), result.stdout.split(), "MemoryError" in result.stderr, "denied" in result.stderr)

asyncio.run(main())
"""


def test_a_user_without_rights_has_sandboxes_too(bubblewrap: None) -> None:
    setpriv, python = shutil.which("setpriv"), f"/usr/bin/python3.{sys.version_info[1]}"
    if os.geteuid() != 0 or setpriv is None:
        pytest.skip("needs root to become another user; these tests run as one already")
    if not os.access(sys.executable, os.X_OK) or not Path(python).exists():
        pytest.skip(f"needs {python}, which every user may run")
    source = Path(bubblewrap_host.__file__).parents[3]
    drop = [setpriv, "--reuid=54321", "--regid=54321", "--clear-groups"]
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        shutil.copytree(source / "whet", Path(name, "whet"), ignore=shutil.ignore_patterns("__pycache__"))
        paths = os.pathsep.join([name, *(path for path in sys.path if "site-packages" in path)])
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [*drop, python, "-c", UNPRIVILEGED], capture_output=True, text=True, env=environment, cwd="/", check=False
        )
    if "ModuleNotFoundError" in done.stderr or "Permission denied: " in done.stderr:
        pytest.skip(f"this user's packages cannot be read by another: {done.stderr.splitlines()[-1]}")
    assert done.stdout == "54321 ['1000', 'done'] True False\n", done.stderr
