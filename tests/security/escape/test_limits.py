"""Programs that use too much or will not end: each is stopped by a limit, named, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.sandboxes.bubblewrap import backend as bubblewrap
from whet.sandboxes.bubblewrap import cgroups
from whet.sandboxes.bubblewrap import command as bubblewrap_command
from whet.sandboxes.bubblewrap.backend import BubblewrapBackend, BubblewrapSandbox
from whet.sandboxes.protocol import MIB, ExecResult, SandboxSpec

from .host import Host, contained, used

pytestmark = pytest.mark.usefixtures("bubblewrap")
LIMITS: dict[str, Any] = {"memory_bytes": 128 * MIB, "disk_bytes": 16 * MIB, "file_bytes": 8 * MIB, "processes": 24}
SPEC = SandboxSpec(**LIMITS, output_bytes=64 * 1024, timeout_s=20, cpu_time_s=1)
Ran = Callable[..., ExecResult]
needs_memory_groups = pytest.mark.skipif(
    "memory" not in cgroups.available(), reason="this user may not make control groups for memory"
)


@pytest.fixture
def ran(host: Host) -> Ran:
    def run(command: str | list[str], spec: SandboxSpec = SPEC, **options: Any) -> ExecResult:
        free = shutil.disk_usage("/").free
        result = contained(host, command if isinstance(command, list) else ["sh", "-c", command], spec, **options)
        assert shutil.disk_usage("/").free > free - 1024 * MIB
        return result

    return run


FORK_BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"


def test_a_fork_bomb_ends_at_its_time_out_and_the_sandbox_lives(ran: Ran) -> None:
    result = ran(["python3", "-c", FORK_BOMB], timeout_s=1.0)
    assert (result.limit, result.failed_by) == ("time", "limit")


COUNT = """
import os, subprocess
running = 0
try:
    while running < 100:
        subprocess.Popen(["sleep", "30"])
        running += 1
except OSError:
    print("refused")
print(running)
"""


def test_no_more_processes_run_than_the_limit(ran: Ran) -> None:
    refused, running = ran(["python3", "-c", COUNT]).stdout.split()
    assert refused == "refused"
    assert int(running) <= SPEC.processes


@needs_memory_groups
def test_a_memory_bomb_is_killed_for_memory(ran: Ran) -> None:
    result = ran(["python3", "-c", "x = []\nwhile True: x.append(bytearray(1 << 20))"])
    assert result.limit == "memory"


FILL = "while head -c 8M /dev/zero >> big; do :; done; while head -c 1M /dev/zero >> /dev/shm/big; do :; done; true"
SMALL = SandboxSpec(memory_bytes=96 * MIB, disk_bytes=1024 * MIB, file_bytes=512 * MIB)


def test_files_cannot_use_up_the_memory_that_the_sandbox_itself_needs(ran: Ran) -> None:
    """`ran` sees to it that the sandbox still answers."""
    result = ran(FILL, SMALL)
    stopped = ("No space left", "File size limit exceeded")
    assert any(words in result.stderr for words in stopped) or result.limit == "memory"


@needs_memory_groups
def test_a_sandbox_that_dies_for_memory_has_met_its_limit_and_the_host_has_not_failed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With files that may use up everything: killing processes frees none, and the kernel goes on to process 1."""
    everything = bubblewrap_command.StorageLimit(SMALL.disk_bytes, 1 << 20)
    for module in (bubblewrap, bubblewrap_command):
        monkeypatch.setattr(module, "room", lambda spec, grouped: everything)

    async def run() -> tuple[ExecResult, ExecResult, ExecResult, int]:
        async with await BubblewrapBackend().create(SMALL) as sandbox:
            while not sandbox.closed:
                result = await sandbox.exec("head -c 8M /dev/zero >> big")
            later = await sandbox.exec("true")
            job = await sandbox.background("true").wait()
            process = await sandbox.start("true")
            assert await process.stdout.read() == b""
            process.close()
            return result, later, job, await process.wait()

    before = host.state()
    *results, status = asyncio.run(run())
    assert [(result.limit, result.failed_by) for result in results] == [("memory", "limit")] * 3
    assert status == -signal.SIGKILL
    assert not host.changes(before)


@needs_memory_groups
def test_memory_bombs_of_many_processes_count_together(ran: Ran) -> None:
    one = "x = bytearray(60 << 20); import time; time.sleep(0.5)"
    result = ran(["bash", "-c", f'for i in 1 2 3 4; do python3 -c "{one}" & done; wait -n; wait -n; wait -n; wait -n'])
    assert result.limit in ("memory", None)
    assert "Traceback" not in result.stdout


@needs_memory_groups
def test_files_in_shared_memory_count_as_memory(ran: Ran) -> None:
    result = ran("head -c 60M /dev/zero > /dev/shm/a; head -c 60M /dev/zero > /dev/shm/b; echo done")
    assert "No space left" in result.stderr or "File size limit" in result.stderr or result.limit is not None


def test_a_disk_filler_stops_at_the_disk_limit(ran: Ran) -> None:
    filler = "i=0; while head -c 4M /dev/zero > f$i; do i=$((i+1)); done; du -sm . | cut -f1"
    result = ran(filler)
    assert int(result.stdout.split()[-1]) * MIB <= LIMITS["disk_bytes"]
    assert "No space left" in result.stderr


def test_home_and_tmp_share_one_disk_limit(ran: Ran) -> None:
    result = ran("for i in 1 2 3; do head -c 4M /dev/zero > $HOME/h$i; head -c 4M /dev/zero > /tmp/t$i; done")
    assert "No space left" in result.stderr


def test_a_file_over_the_file_limit_is_named(ran: Ran) -> None:
    assert ran("head -c 12M /dev/zero > big").limit == "file_size"


def test_a_sparse_file_does_not_get_round_the_file_limit(ran: Ran) -> None:
    assert not ran("truncate -s 1T sparse").ok


def test_a_busy_loop_is_stopped_by_processor_time(ran: Ran) -> None:
    assert ran(["sh", "-c", "while :; do :; done"]).limit == "cpu_time"


def test_gigabytes_of_output_are_cut_off(ran: Ran) -> None:
    result = ran("yes")
    assert (result.limit, result.truncated) == ("output", True)
    assert len(result.stdout_bytes) + len(result.stderr_bytes) == SPEC.output_bytes


def test_output_on_both_streams_counts_together(ran: Ran) -> None:
    result = ran("cat /dev/zero & cat /dev/zero >&2")
    assert result.limit == "output"
    assert len(result.stdout_bytes) + len(result.stderr_bytes) == SPEC.output_bytes


def test_bytes_that_are_no_text_come_out_as_they_are(ran: Ran) -> None:
    assert ran("printf '\\377\\000\\033[2J'").stdout_bytes == b"\xff\x00\x1b[2J"


def test_a_sleeper_is_stopped_by_time_with_its_children(host: Host) -> None:
    async def use(sandbox: BubblewrapSandbox) -> tuple[ExecResult, str]:
        result = await sandbox.exec("sleep 100 & sleep 100", timeout_s=0.3)
        return result, (await sandbox.exec("cat /proc/[0-9]*/comm")).stdout

    result, processes = used(host, use, SPEC)
    assert result.limit == "time"
    assert "sleep" not in processes


UNKILLABLE = """
import os, signal, sys, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
print('up', flush=True)
while True: time.sleep(1)
"""


def test_children_that_ignore_signals_and_flee_into_sessions_are_killed(host: Host) -> None:
    async def use(sandbox: BubblewrapSandbox) -> tuple[ExecResult, str]:
        result = await sandbox.exec(["python3", "-c", UNKILLABLE], timeout_s=0.5)
        return result, (await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout

    result, processes = used(host, use, SPEC)
    assert result.limit == "time"
    assert "SIG_IGN" not in processes


def test_a_daemon_that_holds_the_output_open_does_not_hold_up_its_command(ran: Ran) -> None:
    result = ran("setsid sleep 100 & echo started")
    assert (result.stdout, result.exit_code) == ("started\n", 0)


def test_killing_the_supervisor_ends_the_command_and_nothing_else(ran: Ran) -> None:
    result = ran("kill -9 $PPID; sleep 100", timeout_s=10.0)
    assert result.signal == signal.SIGKILL


def test_killing_everything_inside_leaves_the_sandbox_usable(ran: Ran) -> None:
    assert ran("kill -9 -1; sleep 100", timeout_s=10.0).signal == signal.SIGKILL


def test_stopping_the_supervisor_does_not_outlast_the_time_out(ran: Ran) -> None:
    assert ran("kill -STOP $PPID; sleep 100", timeout_s=0.3).limit == "time"


def test_supervisors_that_end_while_they_are_killed_leave_the_sandbox_usable(host: Host) -> None:
    async def use(sandbox: BubblewrapSandbox) -> str:
        for _ in range(5):
            await asyncio.gather(*(sandbox.exec("kill -STOP $PPID", timeout_s=0.1) for _ in range(8)))
        return (await sandbox.exec("echo usable")).stdout

    assert used(host, use, SPEC) == "usable\n"


def test_commands_killed_before_they_start_leave_the_sandbox_usable(host: Host) -> None:
    async def use(sandbox: BubblewrapSandbox) -> tuple[set[object], str]:
        results = [await sandbox.exec("sleep 100", timeout_s=0.0) for _ in range(8)]
        return {result.limit for result in results}, (await sandbox.exec("echo usable")).stdout

    assert used(host, use, SPEC) == ({"time"}, "usable\n")


def test_a_read_through_a_link_stays_inside(host: Host) -> None:
    async def use(sandbox: BubblewrapSandbox) -> bytes:
        await sandbox.exec("ln -s /etc/passwd link")
        return await sandbox.read("link")

    data = used(host, use, SPEC)
    assert data.startswith(b"user:x:1000")


def test_two_sandboxes_see_nothing_of_each_other() -> None:
    async def run() -> tuple[str, str]:
        backend = BubblewrapBackend()
        async with await backend.create(SPEC) as one, await backend.create(SPEC) as other:
            await one.write("/tmp/mine", b"x")
            job = one.background("sleep 12345")
            files = (await other.exec("ls /tmp $HOME")).stdout
            processes = (await other.exec("cat /proc/[0-9]*/cmdline")).stdout
            await job.kill()
            return files, processes

    files, processes = asyncio.run(run())
    assert "mine" not in files
    assert "12345" not in processes


ORPHANS = """
import asyncio, sys
from whet.sandboxes.bubblewrap.backend import BubblewrapBackend
from whet.sandboxes.protocol import SandboxSpec

async def main():
    sandbox = await BubblewrapBackend().create(SandboxSpec())
    job = sandbox.background("sleep 100")
    await asyncio.sleep(0)
    print(sandbox.pid, flush=True)
    await job.wait()

asyncio.run(main())
"""


def test_the_sandbox_of_a_killed_parent_dies_with_it() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        watched = os.pidfd_open(pid)
        inner = [int(entry) for entry in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        watches = [watched, *map(os.pidfd_open, inner)]
        parent.kill()
    assert inner
    for descriptor in watches:
        with os.fdopen(descriptor) as pidfd:
            assert wait_readable(pidfd.fileno())


def wait_readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 30)[0])
