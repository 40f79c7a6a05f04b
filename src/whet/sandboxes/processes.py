"""What a backend's `_start` returns: a host program in a session of its own, or a command in a bubblewrap sandbox."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence

from whet.system.children import kill_group

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
        kill_group(self._process.pid)

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


async def run(argv: Sequence[str], timeout_s: float, **options: object) -> tuple[int, str, str]:
    """A command of the host itself: (exit code, stdout, stderr). Raises TimeoutError, once it has ended."""
    process = await start(argv, **options)
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate()
    except BaseException:
        kill_group(process.pid)
        await process.wait()
        raise
    assert process.returncode is not None
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")


async def read(argv: Sequence[str], timeout_s: float, take: Callable[[bytes], None]) -> int:
    """A command of the host whose output may be of any length: `take` has it as it comes; the exit code.

    Raises TimeoutError, once it has ended.
    """
    process = await start(["sh", "-c", 'exec "$@" 2>&1 < /dev/null', "sh", *argv])
    assert process.stdout is not None
    try:
        async with asyncio.timeout(timeout_s):
            while chunk := await process.stdout.read(READ_LIMIT):
                take(chunk)
            return await process.wait()
    finally:
        if process.returncode is None:
            kill_group(process.pid)
            await process.wait()


class GuestProcess:
    """A command inside, with its streams."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    def __init__(self, exited: asyncio.Future[int], kill: Callable[[], None]) -> None:
        self._exited = exited
        self._kill = kill
        self._transports: list[asyncio.BaseTransport] = []

    async def connect(self, stdin: int, stdout: int, stderr: int) -> None:
        loop = asyncio.get_running_loop()
        writer, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(stdin, "wb", 0))
        self._transports.append(writer)
        self.stdin = asyncio.StreamWriter(writer, protocol, None, loop)
        self.stdout, self.stderr = [await self._reader(loop, fd) for fd in (stdout, stderr)]

    async def _reader(self, loop: asyncio.AbstractEventLoop, fd: int) -> asyncio.StreamReader:
        reader = asyncio.StreamReader(READ_LIMIT, loop)
        pipe = os.fdopen(fd, "rb", 0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader, loop=loop), pipe)
        self._transports.append(transport)
        return reader

    async def wait(self) -> int:
        return await asyncio.shield(self._exited)

    def kill(self) -> None:
        self._kill()

    def close(self) -> None:
        for transport in self._transports:
            transport.close()


def pipes() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """(the command's ends of stdin, stdout and stderr, our ends)."""
    (in_read, in_write), (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe(), os.pipe()
    return (in_read, out_write, err_write), (in_write, out_read, err_read)


async def killed_process() -> GuestProcess:
    """A command that was killed before it could read or write anything."""
    exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    exited.set_result(-signal.SIGKILL)
    theirs, ours = pipes()
    for fd in theirs:
        os.close(fd)
    process = GuestProcess(exited, lambda: None)
    await process.connect(*ours)
    return process
