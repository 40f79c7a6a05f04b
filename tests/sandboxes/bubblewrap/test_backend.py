"""Bubblewrap as a place to run code: results, processes, jobs, files, ends. What it keeps in: tests/security."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from whet.errors import ConfigError, SandboxError
from whet.sandboxes.bubblewrap import host as bubblewrap_host
from whet.sandboxes.bubblewrap.backend import BubblewrapBackend, BubblewrapSandbox
from whet.sandboxes.protocol import ExecResult, SandboxSpec

pytestmark = pytest.mark.usefixtures("bubblewrap")
Use = Callable[[BubblewrapSandbox], Coroutine[Any, Any, Any]]


def inside(use: Use, spec: SandboxSpec | None = None) -> Any:
    async def run() -> Any:
        async with await BubblewrapBackend().create(spec or SandboxSpec()) as sandbox:
            return await use(sandbox)

    return asyncio.run(run())


def test_a_command_gives_its_output_and_exit_code() -> None:
    result = inside(lambda sandbox: sandbox.exec("echo out; echo err >&2; exit 3"))
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    assert (result.ok, result.failed_by, result.describe()) == (False, "code", "exit code 3")


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    assert inside(lambda sandbox: sandbox.exec("kill -40 $$")).describe() == "killed by signal 40"


def test_a_sequence_is_run_without_a_shell() -> None:
    assert inside(lambda sandbox: sandbox.exec(["echo", "$HOME", "a b"])).stdout == "$HOME a b\n"


def test_a_command_that_does_not_exist_is_the_codes_failure() -> None:
    result = inside(lambda sandbox: sandbox.exec(["no-such-program"]))
    assert (result.exit_code, result.stderr) == (127, "no-such-program: No such file or directory\n")


def test_a_command_too_long_for_the_kernel_says_what_to_do() -> None:
    result = inside(lambda sandbox: sandbox.exec("echo " + "x" * 200_000))
    assert result.exit_code == 126
    assert "write it to a file" in result.stderr


def test_input_environment_and_folder_reach_the_command() -> None:
    async def use(sandbox: BubblewrapSandbox) -> Any:
        return await sandbox.exec("cat; echo $A$B; pwd", stdin=b"in\n", cwd="/tmp", env={"B": "2"})

    result = inside(use, SandboxSpec(env={"A": "1"}))
    assert result.stdout == "in\n12\n/home/tmp\n"


def test_megabytes_go_in_and_out() -> None:
    data = bytes(range(256)) * 8192

    async def use(sandbox: BubblewrapSandbox) -> Any:
        return await sandbox.exec("cat", stdin=data, output_bytes=len(data))

    assert inside(use).stdout_bytes == data


def test_files_outlive_a_command() -> None:
    async def use(sandbox: BubblewrapSandbox) -> Any:
        await sandbox.exec("echo kept > file")
        return await sandbox.exec("cat file")

    assert inside(use).stdout == "kept\n"


def test_files_go_up_and_come_down(tmp_path: Path) -> None:
    data = b"\x00\xff" * 50_000
    (tmp_path / "up").write_bytes(data)

    async def use(sandbox: BubblewrapSandbox) -> None:
        await sandbox.upload(tmp_path / "up", "deep/down/a file")
        await sandbox.download("deep/down/a file", tmp_path / "down")

    inside(use)
    assert (tmp_path / "down").read_bytes() == data


def test_a_folder_goes_up_and_comes_down(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "b" / "data").write_bytes(bytes(range(256)) * 4096)
    (source / "run").write_text("#!/bin/sh\necho ran > made\nln -s /etc/passwd link\n")
    (source / "run").chmod(0o755)

    async def use(sandbox: BubblewrapSandbox) -> tuple[str, ...]:
        await sandbox.upload(source, "some/where")
        assert (await sandbox.exec("./run", cwd="/home/user/some/where")).ok
        return await sandbox.download("some/where", tmp_path / "copy")

    assert inside(use) == ("link",)
    assert (tmp_path / "copy" / "a" / "b" / "data").read_bytes() == bytes(range(256)) * 4096
    assert (tmp_path / "copy" / "made").read_text() == "ran\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "source"]


def test_a_folder_that_does_not_fit_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "big").write_bytes(b"x" * 3_000_000)

    async def use(sandbox: BubblewrapSandbox) -> None:
        with pytest.raises(SandboxError, match=r"cannot upload .*source to up: .*(No space left|Wrote only)"):
            await sandbox.upload(tmp_path / "source", "up")
        await sandbox.exec("rm -r up; mkdir many; head -c 900000 /dev/zero > many/a")
        with pytest.raises(SandboxError, match="cannot download many: it has more than 1000 bytes"):
            await sandbox.download("many", tmp_path / "copy", max_bytes=1000)
        with pytest.raises(SandboxError, match="cannot download many: it has more than 1 entries"):
            await sandbox.download("many", tmp_path / "copy", max_files=1)
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"

    inside(use, SandboxSpec(disk_bytes=1 << 20))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_place_on_the_host_that_cannot_be_read_or_written_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()

    async def use(sandbox: BubblewrapSandbox) -> None:
        await sandbox.exec("mkdir folder; touch file")
        with pytest.raises(ConfigError, match="absent: No such file or directory"):
            await sandbox.upload(tmp_path / "absent", "x")
        with pytest.raises(ConfigError, match="it is there already"):
            await sandbox.download("folder", tmp_path / "full")
        with pytest.raises(ConfigError, match=r"the folder .*absent is not there"):
            await sandbox.download("folder", tmp_path / "absent" / "x")
        with pytest.raises(ConfigError, match="No such file or directory"):
            await sandbox.download("file", tmp_path / "absent" / "x")

    inside(use)


def test_a_cancelled_download_leaves_nothing_behind(tmp_path: Path) -> None:
    async def use(sandbox: BubblewrapSandbox) -> None:
        await sandbox.exec("mkdir folder; head -c 200000000 /dev/zero > folder/big")
        download = asyncio.ensure_future(sandbox.download("folder", tmp_path / "copy", max_bytes=1 << 30))
        while not [path for path in tmp_path.rglob("big") if path.stat().st_size > 1_000_000]:
            await asyncio.sleep(0)
        download.cancel()
        with pytest.raises(asyncio.CancelledError):
            await download
        assert "tar" not in (await sandbox.exec("cat /proc/[0-9]*/comm")).stdout

    inside(use)
    assert list(tmp_path.iterdir()) == []


def test_reading_too_large_or_absent_a_file_is_an_error() -> None:
    async def use(sandbox: BubblewrapSandbox) -> None:
        await sandbox.write("big", b"x" * 100)
        with pytest.raises(SandboxError, match="output limit"):
            await sandbox.read("big", max_bytes=10)
        with pytest.raises(SandboxError, match="cannot read absent"):
            await sandbox.read("absent")

    inside(use)


def test_a_persistent_process_keeps_its_state() -> None:
    async def use(sandbox: BubblewrapSandbox) -> tuple[bytes, int]:
        process = await sandbox.start(["python3", "-i", "-q"])
        process.stdin.write(b"x = 20\nprint(x + 1)\n")
        line = await process.stdout.readline()
        process.kill()
        status = await process.wait()
        process.close()
        return line, status

    assert inside(use) == (b"21\n", -9)


def test_a_background_job_is_waited_for_or_killed() -> None:
    async def use(sandbox: BubblewrapSandbox) -> tuple[str, str, str]:
        quick, slow = sandbox.background("echo quick"), sandbox.background("sleep 54321")
        done = await quick.wait()
        while "54321" not in (before := (await sandbox.exec("cat /proc/[0-9]*/cmdline")).stdout):
            continue
        await slow.kill()
        while "54321" in (after := (await sandbox.exec("cat /proc/[0-9]*/cmdline")).stdout):
            continue
        return done.stdout, before, after

    assert inside(use)[0] == "quick\n"


def test_commands_run_at_the_same_time() -> None:
    async def use(sandbox: BubblewrapSandbox) -> list[Any]:
        waiting = sandbox.exec("mkfifo -m 600 pipe 2>/dev/null; while ! [ -p pipe ]; do :; done; cat pipe")
        writing = sandbox.exec("while ! [ -p pipe ]; do :; done; echo together > pipe")
        return list(await asyncio.gather(waiting, writing))

    assert inside(use)[0].stdout == "together\n"


def test_a_cancelled_command_does_not_run_on() -> None:
    async def use(sandbox: BubblewrapSandbox) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await sandbox.exec("sleep 54321")
        while "54321" in (await sandbox.exec("cat /proc/[0-9]*/cmdline")).stdout:
            continue

    inside(use)


def test_a_closed_sandbox_says_why() -> None:
    async def use(sandbox: BubblewrapSandbox) -> None:
        await sandbox.close()
        await sandbox.close()
        with pytest.raises(SandboxError, match="is closed: it was closed"):
            await sandbox.exec("true")

    inside(use)


def test_an_idle_sandbox_closes_itself() -> None:
    async def use(sandbox: BubblewrapSandbox) -> None:
        assert (await sandbox.exec("sleep 0.2")).ok, "a running command is not idleness"
        while not sandbox.closed:
            await asyncio.sleep(0)
        with pytest.raises(SandboxError, match=r"idle limit of 0\.1 s"):
            await sandbox.exec("true")

    inside(use, SandboxSpec(idle_s=0.1))


def test_the_absolute_limit_ends_a_running_command() -> None:
    result = inside(lambda sandbox: sandbox.exec("sleep 100"), SandboxSpec(lifetime_s=0.3))
    assert (result.limit, result.failed_by) == ("lifetime", "limit")


def test_close_during_a_command_raises_sandbox_error() -> None:
    async def use(sandbox: BubblewrapSandbox) -> None:
        running = asyncio.ensure_future(sandbox.exec("sleep 100"))
        await sandbox.exec("true")
        await sandbox.close()
        with pytest.raises(SandboxError, match="closed under a running command: it was closed"):
            await running

    inside(use)


def test_a_first_process_that_the_host_kills_is_no_verdict_about_the_code() -> None:
    async def use(sandbox: BubblewrapSandbox) -> None:
        running = asyncio.ensure_future(sandbox.exec("sleep 100"))
        await sandbox.exec("true")
        (first,) = Path(f"/proc/{sandbox.pid}/task/{sandbox.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGKILL)
        with pytest.raises(SandboxError, match="closed under a running command: its first process ended"):
            await running

    inside(use)


def test_many_sandboxes_start_at_once() -> None:
    async def run() -> list[str]:
        backend = BubblewrapBackend()
        sandboxes = await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(20)))
        results = await asyncio.gather(*(sandbox.exec("echo ok") for sandbox in sandboxes))
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
        return [result.stdout for result in results]

    assert asyncio.run(run()) == ["ok\n"] * 20


def test_a_folder_of_the_host_can_be_shown_read_only() -> None:
    folder = Path(tempfile.mkdtemp(prefix="whet-shown-"))  # pytest's own folders are closed to strangers
    try:
        folder.chmod(0o755)
        (folder / "word").write_text("shown\n")
        spec = SandboxSpec(read_only={"/opt/shown": str(folder)})
        result = inside(lambda sandbox: sandbox.exec("cat /opt/shown/word; touch /opt/shown/new"), spec)
        assert result.stdout == "shown\n"
        assert "Read-only file system" in result.stderr
    finally:
        shutil.rmtree(folder)


def test_declared_folders_can_be_written_to_within_the_disk() -> None:
    async def use(sandbox: BubblewrapSandbox) -> tuple[bytes, ExecResult]:
        await sandbox.write("/app/deep/file", b"kept")
        await sandbox.upload(Path(__file__).parent, "/logs/verifier/tests")
        full = "cat /dev/zero > /app/big; rm /app/big; ls /logs/verifier/tests/test_backend.py; touch /logs/other"
        return await sandbox.read("/app/deep/file"), await sandbox.exec(full, cwd="/app")

    spec = SandboxSpec(writable=["/app", "/logs/verifier"], disk_bytes=4 << 20)
    kept, result = inside(use, spec)
    assert kept == b"kept"
    assert "No space left" in result.stderr
    assert result.stdout == "/logs/verifier/tests/test_backend.py\n"
    assert "/logs/other" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("path", ["app", "/", "/usr/local", "/etc", "/tmp/x", "/home/user", "/a/../b", "/var"])
def test_a_writable_folder_of_the_system_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="writable="):
        SandboxSpec(writable=[path])


@pytest.mark.parametrize("path", ["/tests/test.sh", "/usr/share/x"])
def test_a_path_that_is_read_only_for_everything_is_no_failure_of_the_code(path: str) -> None:
    async def use(sandbox: BubblewrapSandbox) -> list[type]:
        with pytest.raises(SandboxError) as written:
            await sandbox.write(path, b"x")
        with pytest.raises(SandboxError) as uploaded:
            await sandbox.upload(Path(__file__).parent, path)
        assert "in `writable`" in str(written.value)
        return [written.type, uploaded.type]

    assert inside(use) == [SandboxError, SandboxError]


def test_a_started_process_that_runs_out_of_memory_is_counted() -> None:
    async def use(sandbox: BubblewrapSandbox) -> tuple[int, int]:
        process = await sandbox.start(["python3", "-c", "x = b'x' * (100 << 20)"])
        return await process.wait(), sandbox.memory_kills

    status, kills = inside(use, SandboxSpec(memory_bytes=64 << 20))
    assert status != 0
    if bubblewrap_host.host().controllers:
        assert kills > 0
