"""`ServerProcess`: the process of an MCP server, the end of its output, and its exit status.

Started through `guard.py`, so that it and its children end with this process, even after SIGKILL. Its output is read
continuously, so that it never blocks on a full pipe; only the end is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from whet.errors import InfraError
from whet.system.children import how_it_ended

GUARD = Path(__file__).with_name("guard.py")
GRACE_SECONDS = 2.0  # to end by itself once stdin is closed, and again after SIGTERM
CLOSED_SECONDS = 15.0  # to end, once it has closed its stdout
TAIL_BYTES = 2000
MAX_MESSAGE_BYTES = 32 * 1024 * 1024  # one line of stdout; a longer one is an error of the server


class OutputTail:
    """The end of a stream."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._cut = False

    def add(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > TAIL_BYTES:
            del self._kept[:-TAIL_BYTES]
            self._cut = True

    def __str__(self) -> str:
        text = self._kept.decode(errors="replace").strip()
        return f"[...] {text}" if self._cut else text


class ServerProcess:
    """Use `start`, and `end` when done."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: int, stdout_is_log: bool) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.pid = process.pid
        self.stdin = process.stdin
        self.log = OutputTail()
        self._ends_with_stdin = not stdout_is_log
        self._process = process
        self._stdout = process.stdout
        self._lifeline: int | None = lifeline
        logs = [process.stderr, process.stdout] if stdout_is_log else [process.stderr]
        self._readers = [asyncio.create_task(self._keep(stream, self.log)) for stream in logs]

    @classmethod
    async def start(
        cls, argv: Sequence[str], env: Mapping[str, str], cwd: str | None, *, stdout_is_log: bool
    ) -> ServerProcess:
        """Run `argv`. With `stdout_is_log`, stdout is kept with stderr; otherwise it is read by `lines`."""
        receiver, lifeline = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(GUARD), str(receiver), str(os.getpid()), str(GRACE_SECONDS)),
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,  # Ctrl-C in a terminal is whet's to handle
                pass_fds=(receiver,),
                limit=MAX_MESSAGE_BYTES,
            )
        except BaseException:
            os.close(lifeline)
            raise
        finally:
            os.close(receiver)
        return cls(process, lifeline, stdout_is_log)

    async def lines(self) -> AsyncIterator[bytes]:
        """Lines of stdout until it closes. Raises `InfraError` for one of more than `MAX_MESSAGE_BYTES`."""
        while True:
            try:
                line = await self._stdout.readline()
            except ValueError:
                raise InfraError(f"it wrote a message of more than {MAX_MESSAGE_BYTES >> 20} MiB") from None
            if not line:
                return
            yield line

    async def wait(self) -> None:
        """Until the process has ended."""
        await self._process.wait()

    async def how_it_ended(self) -> str:
        """`it exited with code 3`, once it has; otherwise that it still runs."""
        closed = self._stdout.at_eof()  # then it is about to end, which takes a while where cores are busy
        await self._ends_within(CLOSED_SECONDS if closed else GRACE_SECONDS)
        await asyncio.wait(self._readers, timeout=1.0)
        code = self._process.returncode
        if code is None:
            return "it still runs, and answers nothing"
        return f"it {how_it_ended(128 - code if code > 128 else code)}"

    async def end(self) -> None:
        """End it: by closing its stdin where it reads that, then by force. Takes at most a few seconds."""
        self.stdin.close()
        if self._ends_with_stdin:
            # Read to the end, so that a server with much output can exit.
            self._readers.append(asyncio.create_task(self._keep(self._stdout, OutputTail())))
        try:
            await self._ends_within(GRACE_SECONDS if self._ends_with_stdin else 0)
        finally:  # also if the event loop ends and cancels this
            self.abandon()
            await self._ends_within(2 * GRACE_SECONDS)
            await asyncio.wait(self._readers, timeout=0.5)
            for reader in self._readers:
                reader.cancel()
            # A process outside of the server's group may hold its pipes open; they are closed here in any case.
            self._process._transport.close()  # type: ignore[attr-defined]

    def abandon(self) -> None:
        """Have the guard kill it; from any thread, also without an event loop."""
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            os.close(lifeline)

    def __del__(self) -> None:
        self.abandon()

    async def _ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), seconds)
        return self._process.returncode is not None

    async def _keep(self, stream: asyncio.StreamReader, tail: OutputTail) -> None:
        while data := await stream.read(65536):
            tail.add(data)
