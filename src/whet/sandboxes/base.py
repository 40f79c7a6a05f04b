"""What every sandbox does the same way, given a way to start a process: bounded runs, files, jobs, and its own end.

A backend implements `_start`, `_close` and, where it can tell, `_counters`. Files are moved by `sh` and `cat`
*inside* the sandbox, so a path or a link that the code made up means there what it means to the code, and nothing on
the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import posixpath
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from whet.errors import ConfigError, SandboxError, SandboxFileError
from whet.sandboxes.network.allow_list import NetworkUse
from whet.sandboxes.processes import killed_process
from whet.sandboxes.protocol import (
    HOME,
    MIB,
    WRITABLE,
    Command,
    ExecResult,
    Limit,
    Process,
    SandboxSpec,
    can_be_writable,
)
from whet.sandboxes.transfer import download_folder, upload_folder

DRAIN_S = 0.2  # how long to keep reading after a command's end, when a leftover process holds its output open
KILL_S = 10.0  # how long a killed command may take to be gone before the whole sandbox is closed
COMMAND_BYTES = 120_000  # the kernel refuses a single argument over 128 KiB
CHUNK = 64 * 1024
CONTAINER = "whet-docker"  # what a container's id begins with

_numbers = itertools.count(1)


class SandboxBase(ABC):
    """A sandbox in terms of one started process at a time."""

    def __init__(self, backend: str, spec: SandboxSpec) -> None:
        if spec.root and backend != "bubblewrap":
            raise ConfigError(f"sandbox: root={spec.root!r} is possible with the bubblewrap backend alone.")
        if spec.user and backend != CONTAINER:
            raise ConfigError(f"sandbox: user={spec.user!r} is possible with docker and podman alone.")
        self.id = f"{backend}-{os.getpid()}-{next(_numbers)}"
        self.spec = spec
        self.home = HOME
        self._why_closed: str | None = None
        self._ended_by: Limit | None = None  # the limit by which its code has ended it
        self._running = 0
        self._closing: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._lifetime = self._loop.call_later(spec.lifetime_s, self._expire, "lifetime", spec.lifetime_s)
        self._idle: asyncio.TimerHandle | None = None
        self._count(0)

    @abstractmethod
    async def _start(self, argv: list[str], cwd: str | None, env: dict[str, str]) -> Process:
        """Start a command."""

    @abstractmethod
    async def _close(self) -> None:
        """End every process and free everything; called once."""

    @abstractmethod
    def abandon(self) -> None:
        """End its processes from any thread, without its event loop, which has ended and never closed it."""

    def _counters(self) -> tuple[int, int]:
        """How often a process was refused memory, and how often a new process was refused, so far."""
        return (0, 0)

    def _end_by_code(self, why: str, limit: Limit) -> asyncio.Task[None]:
        """End it for something that its code did. Later commands fail by that limit: the host is not at fault."""
        if self._why_closed is None:
            self._ended_by = limit
        return self._end(why)

    @property
    def closed(self) -> bool:
        return self._why_closed is not None

    @property
    def network(self) -> NetworkUse | None:
        """What went through its network and what was refused; None where it has none."""
        return None

    @property
    def memory_kills(self) -> int:
        """How often a process was refused memory so far; read when a process of `start` ends."""
        return self._counters()[0]

    async def start(self, command: Command, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> Process:
        """A persistent process whose streams are the caller's. While it runs the sandbox is not idle.

        In a sandbox that its code has ended, the returned process is already killed.
        """
        self._check_open()
        problem = _unrunnable(command, env)
        if problem is not None:
            raise SandboxError(f"sandbox {self.id}: {problem}")
        self._count(+1)
        try:
            if self._ended_by is not None:
                process: Process = await killed_process()
            else:
                process = await self._start(_argv(command), cwd, {**self.spec.env, **(env or {})})
        except BaseException:
            self._count(-1)
            raise
        watch = self._loop.create_task(self._watch(process))
        watch.add_done_callback(lambda task: task.cancelled() or task.exception())  # `wait` tells the caller as well
        return process

    async def exec(
        self,
        command: Command,
        *,
        stdin: bytes = b"",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        output_bytes: int | None = None,
    ) -> ExecResult:
        """Run a command to its end within its limits. Raises SandboxError only when the host is at fault."""
        began = time.monotonic()
        self._check_open()
        problem = _unrunnable(command, env)
        if problem is not None:
            return ExecResult(126, None, b"", problem.encode(), 0.0)
        before = self._counters()
        budget = _Budget(self.spec.output_bytes if output_bytes is None else output_bytes)
        process = await self.start(command, cwd=cwd, env=env)
        readers = [asyncio.ensure_future(budget.collect(stream)) for stream in (process.stdout, process.stderr)]
        helpers = [*readers, asyncio.ensure_future(_feed(process.stdin, stdin))]
        ended = asyncio.ensure_future(process.wait())
        full = asyncio.ensure_future(budget.full.wait())
        limit: Limit | None = None
        try:
            timeout = self.spec.timeout_s if timeout_s is None else timeout_s
            done, _ = await asyncio.wait({ended, full}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if ended not in done:
                limit = "output" if full in done else "time"
                process.kill()
                await self._ended_or_closed(ended)
            await asyncio.wait(readers, timeout=DRAIN_S)
            status = self._status(ended, before, limit)
        finally:
            if not ended.done():
                process.kill()
            for helper in (*helpers, full, ended):
                helper.cancel()
            await asyncio.gather(*helpers, full, ended, return_exceptions=True)
            process.close()
        if budget.full.is_set():
            limit = limit or "output"
        limit = limit or self._limit_of(status, before)
        return ExecResult(
            exit_code=status if status >= 0 else None,
            signal=-status if status < 0 else None,
            stdout_bytes=bytes(budget.buffers[process.stdout]),
            stderr_bytes=bytes(budget.buffers[process.stderr]),
            duration_s=time.monotonic() - began,
            limit=limit,
            truncated=budget.full.is_set(),
        )

    def background(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> SandboxJob:
        """Run a command in the background; its output is collected within the same limit."""
        timeout = self.spec.lifetime_s if timeout_s is None else timeout_s
        return SandboxJob(asyncio.ensure_future(self.exec(command, cwd=cwd, env=env, timeout_s=timeout)))

    async def write(self, path: str, data: bytes) -> None:
        """Write a file inside, with the folders above it.

        Raises SandboxFileError when it does not fit, SandboxError where the sandbox's code could not write either.
        """
        script = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
        result = await self.exec(["sh", "-c", script, "sh", path], stdin=data)
        if not result.ok:
            raise self.cannot_write(path, f"cannot write {path}: {_reason(result)}")

    def cannot_write(self, path: str, what: str) -> SandboxError:
        """The error of a failed transfer to `path`: of the code's making only where the code can write."""
        full = posixpath.normpath(posixpath.join(self.home, path))
        own = ("",) if self.spec.user else (self.home, *WRITABLE, *self.spec.writable)
        if any(full == folder or full.startswith(f"{folder}/") for folder in own):
            return SandboxFileError(f"sandbox {self.id}: {what}")
        top = f"/{full.split('/')[1]}"
        hint = f", such as writable=['{top}']" if can_be_writable(top) else ""
        return SandboxError(
            f"sandbox {self.id}: {what}. Home, /tmp and /dev/shm can be written to, and folders that the environment "
            f"names in `writable`{hint}"
        )

    async def read(self, path: str, max_bytes: int = 16 * MIB) -> bytes:
        """A file's bytes. Raises SandboxFileError when there is none or it is larger than `max_bytes`."""
        result = await self.exec(["sh", "-c", 'cat < "$1"', "sh", path], output_bytes=max_bytes)
        if not result.ok:
            raise SandboxFileError(f"sandbox {self.id}: cannot read {path}: {_reason(result)}")
        return result.stdout_bytes

    async def upload(self, local: str | Path, path: str) -> None:
        """Copy a file or the contents of a folder of the host to a path inside."""
        source = Path(local)
        if await asyncio.to_thread(source.is_dir):
            what = f"cannot upload {local} to {path}"
            await upload_folder(self, source, path, lambda why: self.cannot_write(path, f"{what}: {why}"))
            return
        try:
            data = await asyncio.to_thread(source.read_bytes)
        except OSError as error:
            raise ConfigError(f"cannot upload {source}: {error.strerror}.") from error
        await self.write(path, data)

    async def download(
        self, path: str, local: str | Path, max_bytes: int = 256 * MIB, max_files: int = 10_000
    ) -> tuple[str, ...]:
        """Copy a file or a folder from inside to the host: contents only, no owner, no mode, no link.

        A folder is copied whole or not at all. Returns the names of the links and special files in it, which are left
        out. Raises SandboxFileError when it is not there, or larger than `max_bytes` or `max_files`.
        """
        self._check_open()
        if (await self.exec(["test", "-d", path])).ok:
            return await download_folder(self, path, Path(local), max_bytes, max_files)
        data = await self.read(path, max_bytes)
        try:
            await asyncio.to_thread(Path(local).write_bytes, data)
        except OSError as error:
            raise ConfigError(f"cannot download to {local}: {error.strerror}.") from error
        return ()

    async def close(self) -> None:
        """End every process in it and forget its files."""
        await asyncio.shield(self._end("it was closed"))

    async def __aenter__(self) -> SandboxBase:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _end(self, why: str) -> asyncio.Task[None]:
        if self._closing is None:
            self._why_closed = self._why_closed or why
            self._lifetime.cancel()
            if self._idle is not None:
                self._idle.cancel()
            self._closing = self._loop.create_task(self._close())
        return self._closing

    def _expire(self, which: str, seconds: float) -> None:
        self._end(f"its {which} limit of {seconds:g} s was reached")

    def _check_open(self) -> None:
        if self._why_closed is not None and self._ended_by is None:
            raise SandboxError(f"sandbox {self.id} is closed: {self._why_closed}.")

    def _count(self, change: int) -> None:
        """Idle time runs while nothing else does."""
        self._running += change
        if self._idle is not None:
            self._idle.cancel()
        if self._running == 0 and not self.closed:
            self._idle = self._loop.call_later(self.spec.idle_s, self._expire, "idle", self.spec.idle_s)

    async def _watch(self, process: Process) -> None:
        try:
            await process.wait()
        finally:
            self._count(-1)

    async def _ended_or_closed(self, ended: asyncio.Future[int]) -> None:
        """A killed command that does not end takes its sandbox with it: nothing may run on unseen."""
        done, _ = await asyncio.wait({ended}, timeout=KILL_S)
        if not done:
            await asyncio.shield(self._end_by_code("a command did not end when it was killed", "time"))

    def _status(self, ended: asyncio.Future[int], before: tuple[int, int], limit: Limit | None) -> int:
        """How the command ended. Raises SandboxError when its sandbox ended under it through no limit of the code's."""
        killed = -int(signal.SIGKILL)
        if ended.done() and (error := ended.exception()) is not None:
            if not self.closed:
                raise SandboxError(f"sandbox {self.id}: {error}")
        elif ended.done() and (ended.result() != killed or not self.closed):
            return ended.result()
        by_code = limit is not None or self._ended_by is not None or self._counters()[0] > before[0]
        if not by_code and self._why_closed is not None and "lifetime" not in self._why_closed:
            raise SandboxError(f"sandbox {self.id} was closed under a running command: {self._why_closed}.")
        return killed

    def _limit_of(self, status: int, before: tuple[int, int]) -> Limit | None:
        """Which limit a command ran into, if one: a shell reports a child's signal as 128 plus its number."""
        if status == 0:
            return None
        after = self._counters()
        if after[0] > before[0]:
            return "memory"
        if self._ended_by is not None:
            return self._ended_by
        if self._why_closed is not None:
            return "lifetime"
        number = -status if status < 0 else status - 128
        if number == signal.SIGXCPU:
            return "cpu_time"
        if number == signal.SIGXFSZ:
            return "file_size"
        return "processes" if after[1] > before[1] else None


class SandboxJob:
    """A command in the background. `kill` ends it and everything it started."""

    def __init__(self, task: asyncio.Future[ExecResult]) -> None:
        self._task = task

    @property
    def done(self) -> bool:
        return self._task.done()

    async def wait(self) -> ExecResult:
        return await asyncio.shield(self._task)

    async def kill(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


class _Budget:
    """Bytes that may still be kept, over all streams of a command."""

    def __init__(self, limit: int) -> None:
        self.left = limit
        self.full = asyncio.Event()
        self.buffers: dict[asyncio.StreamReader, bytearray] = {}

    async def collect(self, stream: asyncio.StreamReader) -> None:
        buffer = self.buffers.setdefault(stream, bytearray())
        while chunk := await stream.read(CHUNK):
            buffer += chunk[: self.left]
            if len(chunk) > self.left:
                self.full.set()
            self.left = max(0, self.left - len(chunk))


async def _feed(stream: asyncio.StreamWriter, data: bytes) -> None:
    """A command need not read its input: a closed pipe is its business."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        if data:
            stream.write(data)
            await stream.drain()
    stream.close()


def _argv(command: Command) -> list[str]:
    return ["sh", "-c", command] if isinstance(command, str) else list(command)


def _unrunnable(command: Command, env: Mapping[str, str] | None) -> str | None:
    words = _argv(command) + [f"{name}={value}" for name, value in (env or {}).items()]
    if not words[0]:
        return "there is no command to run"
    if any("\0" in word for word in words):
        return "a command and its environment cannot contain a NUL character"
    if sum(len(word.encode(errors="surrogateescape")) + 1 for word in words) > COMMAND_BYTES:
        return f"the command is longer than {COMMAND_BYTES} bytes: write it to a file and run that"
    return None


def _reason(result: ExecResult) -> str:
    return result.stderr.strip() or result.describe()
