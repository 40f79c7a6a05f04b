"""A command inside a bubblewrap sandbox as the host sees it: three pipes, and an end that process 1 reports."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

READ_LIMIT = 256 * 1024


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
