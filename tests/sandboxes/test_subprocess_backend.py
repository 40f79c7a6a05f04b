"""The backend for trusted code: it runs, it is limited where it can be, and it says that it is no boundary."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from whet.errors import ConfigError
from whet.sandboxes.protocol import SandboxSpec
from whet.sandboxes.subprocess_backend import SubprocessBackend, SubprocessSandbox


def inside(use: Callable[[SubprocessSandbox], Coroutine[Any, Any, Any]], spec: SandboxSpec | None = None) -> Any:
    async def run() -> Any:
        async with await SubprocessBackend().create(spec or SandboxSpec()) as sandbox:
            return await use(sandbox)

    return asyncio.run(run())


def test_it_says_that_it_is_no_boundary(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        asyncio.run(SubprocessBackend().check())
    assert "no boundary" in caplog.text


def test_commands_run_and_files_last_until_it_is_closed() -> None:
    async def use(sandbox: SubprocessSandbox) -> Any:
        await sandbox.write("a/file", b"data")
        return sandbox.folder, await sandbox.exec("cat a/file; exit 2")

    folder, result = inside(use)
    assert (result.stdout, result.exit_code) == ("data", 2)
    assert not folder.exists()


def test_a_time_out_ends_the_command_and_its_children() -> None:
    result = inside(lambda sandbox: sandbox.exec("sleep 100 & sleep 100", timeout_s=0.2))
    assert result.limit == "time"


def test_too_much_output_and_too_large_files_are_limits() -> None:
    spec = SandboxSpec(output_bytes=1000, file_bytes=100_000)
    assert inside(lambda sandbox: sandbox.exec("yes"), spec).limit == "output"
    assert inside(lambda sandbox: sandbox.exec("head -c 1000000 /dev/zero > file"), spec).limit == "file_size"


def test_a_command_that_does_not_exist_is_the_codes_failure() -> None:
    result = inside(lambda sandbox: sandbox.exec(["no-such-program"]))
    assert (result.exit_code, result.stderr) == (127, "no-such-program: No such file or directory\n")


def test_the_environment_of_whet_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_HOST_SECRET", "hidden")
    assert "hidden" not in inside(lambda sandbox: sandbox.exec("env")).stdout


def test_a_folder_can_only_be_shown_where_it_is() -> None:
    with pytest.raises(ConfigError, match="cannot be shown as /opt/x"):
        inside(lambda sandbox: sandbox.exec("true"), SandboxSpec(read_only={"/opt/x": "/usr"}))
    assert inside(lambda sandbox: sandbox.exec("true"), SandboxSpec(read_only={"/usr": "/usr"})).ok


def test_a_folder_of_the_host_is_not_made_writable() -> None:
    with pytest.raises(ConfigError, match="would be the host's own"):
        inside(lambda sandbox: sandbox.exec("true"), SandboxSpec(writable=["/app"]))


def test_a_path_inside_has_to_be_absolute() -> None:
    with pytest.raises(ConfigError, match="absolute path"):
        SandboxSpec(read_only={"opt": "/usr"})


ORPHANS = """
import asyncio
from whet.sandboxes.protocol import SandboxSpec
from whet.sandboxes.subprocess_backend import SubprocessBackend

async def main():
    sandbox = await SubprocessBackend().create(SandboxSpec())
    process = await sandbox.start(["sh", "-c", "echo $$; exec sleep 100"])
    print((await process.stdout.readline()).decode().strip(), sandbox.folder, flush=True)
    await process.wait()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
def test_killed_parent_leaves_no_command_and_no_folder() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        with os.fdopen(os.pidfd_open(int(pid))) as watched:
            parent.kill()
            assert select.select([watched], [], [], 30)[0]
    assert Path(folder).exists()

    async def use(sandbox: SubprocessSandbox) -> bool:
        return sandbox.folder.exists()

    assert inside(use)
    assert not Path(folder).exists()
