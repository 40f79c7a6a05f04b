"""A program of the host as a sandbox `Process`, in a session of its own; for backends that start one per command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence

READ_LIMIT = 256 * 1024


class HostProcess:
    """`asyncio.subprocess.Process` with a `kill` of its own and streams that are always there."""

    def __init__(self, process: asyncio.subprocess.Process, on_kill: Callable[[], None] | None = None) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr
        self._process = process
        self._on_kill = on_kill

    async def wait(self) -> int:
        return await self._process.wait()

    def kill(self) -> None:
        if self._on_kill is not None:
            self._on_kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.stdin.close()


async def start(argv: Sequence[str], **options: object) -> asyncio.subprocess.Process:
    """Three pipes, a session of its own."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *argv,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
        limit=READ_LIMIT,
        **options,  # type: ignore[arg-type]
    )


async def run(
    argv: Sequence[str], env: Mapping[str, str] | None = None, timeout_s: float = 300.0
) -> tuple[int, str, str]:
    """A short command of the host itself: (exit code, stdout, stderr)."""
    process = await start(argv, env=env)
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        raise
    assert process.returncode is not None
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")


def runs(pid: int) -> bool:
    """Whether there is a process with that id; leftovers of killed processes are removed by it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
