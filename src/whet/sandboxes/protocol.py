"""The interface of a sandbox: its limits, its operations, and the result of a command.

A result names the cause of a failure. The code: `exit_code` or `signal`. A limit: `limit` names it. The host: no result
but a `SandboxError`, so that a broken machine is never mistaken for a failure of the code.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol

from whet.errors import ConfigError
from whet.sandboxes.network.allow_list import PROXY_HOST, PROXY_PORT, AllowList, NetworkUse, parse_origin
from whet.system.children import signal_name

ORIGIN_URL = f"http://{PROXY_HOST}:{PROXY_PORT}"
"""Where code in a sandbox with an `origin` reaches it, whether it knows of proxies or not."""
Command = str | Sequence[str]  # a string is run by `sh -c`, a sequence as it is
Limit = Literal["time", "output", "memory", "processes", "cpu_time", "file_size", "lifetime"]

MIB = 1 << 20
GIB = 1 << 30

HOME = "/home/user"
OPEN_NETWORK = ("*",)
"""`network` of a container with a `user` alone: whatever docker or podman let one reach."""
WRITABLE = (HOME, "/tmp", "/var/tmp", "/dev/shm")
_SYSTEM = re.compile(r"/((bin|boot|dev|etc|home|lib\w*|proc|run|sbin|sys|tmp|usr)(/.*)?|var(/tmp(/.*)?)?)?")


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a sandbox may use. Sizes are bytes, times are seconds."""

    image: str | None = None  # docker and podman only
    root: str = ""  # bubblewrap only: the folder whose system is shown in place of the host's
    # docker and podman only: commands are those of this user of the image (name or number, 0 is root), who may write to
    # all of its files; the disk is then measured every few seconds. Without one they are those of user 1000.
    user: str = ""
    cpus: float = 1.0  # share of the machine's cores; exact where cgroups are writable
    memory_bytes: int = 2 * GIB  # of the whole sandbox where cgroups are writable, else of each process
    processes: int = 128  # threads count as well
    disk_bytes: int = 1 * GIB  # home, /tmp and /dev/shm together; one file per 16 KiB of memory
    file_bytes: int = 512 * MIB  # the largest single file
    output_bytes: int = 1 * MIB  # kept of stdout and stderr together; a command that writes more is ended
    timeout_s: float = 30.0  # of one command, unless the call names another
    cpu_time_s: int = 600  # of one process
    idle_s: float = 600.0  # closed after so long without a running command
    lifetime_s: float = 3600.0  # closed so long after its creation, whatever runs
    network: Sequence[str] = ()  # hosts that may be reached, through a proxy: see `network`; none without
    origin: str | None = None  # address and port that http://127.0.0.1:3128 inside leads to
    network_connections: int = 16  # at once; further ones wait
    network_bytes: int = 1 * GIB  # to and from servers together
    network_idle_s: float = 60.0  # without a byte either way before a connection is ended
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # Absolute path inside: folder of the host that is shown there and cannot be written to.
    read_only: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # Absolute paths of empty folders that can be written to, besides home, /tmp and /dev/shm; part of the disk.
    writable: Sequence[str] = ()

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if isinstance(value, int | float) and not value > 0:
                raise ConfigError(f"sandbox: {limit.name}={value!r} should be greater than 0.")
        for inside in self.read_only:
            if not inside.startswith("/") or ":" in inside:
                raise ConfigError(f"sandbox: read_only={inside!r} should be an absolute path without a colon.")
        for path in self.writable:
            if not path.startswith("/") or ":" in path or posixpath.normpath(path) != path:
                raise ConfigError(f"sandbox: writable={path!r} should be an absolute path without '..' or a colon.")
            if not can_be_writable(path):
                raise ConfigError(
                    f"sandbox: writable={path!r} is the system's, or can be written to already. "
                    "Name a folder of the task's own, such as /app."
                )
        if not (self.user and tuple(self.network) == OPEN_NETWORK):
            AllowList.parse(self.network)
        if self.origin is not None:
            parse_origin(self.origin)

    @property
    def has_network(self) -> bool:
        """Whether anything outside can be reached."""
        return bool(self.network) or self.origin is not None

    def refuse_network(self, backend: str, reason: str) -> None:
        """Raise ConfigError where the sandbox should reach anything, for a backend that cannot limit it."""
        if self.has_network:
            what = f"network={list(self.network)!r}" if self.network else f"origin={self.origin!r}"
            raise ConfigError(
                f"sandbox: {what} cannot be kept to {backend}, {reason}. "
                f"Leave {what.partition('=')[0]} empty, or use the bubblewrap backend."
            )


def can_be_writable(path: str) -> bool:
    """Whether a path is absolute and neither the system's nor writable in any case."""
    return path.startswith("/") and not _SYSTEM.fullmatch(path)


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended. Exactly one of `exit_code` and `signal` is set."""

    exit_code: int | None
    signal: int | None
    stdout_bytes: bytes
    stderr_bytes: bytes
    duration_s: float
    limit: Limit | None = None  # the limit that ended it or that it ran into
    truncated: bool = False  # more was written than `output_bytes`

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode(errors="replace")

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and self.limit is None

    @property
    def failed_by(self) -> Literal["code", "limit"] | None:
        """Who failed. The host is not among them: when it fails, `exec` raises SandboxError."""
        if self.limit is not None:
            return "limit"
        return None if self.exit_code == 0 else "code"

    def describe(self) -> str:
        """One line for a user or a model."""
        if self.limit is not None:
            return f"stopped by the {self.limit.replace('_', ' ')} limit"
        if self.signal is not None:
            return f"killed by {signal_name(self.signal)}"
        return f"exit code {self.exit_code}"


class Process(Protocol):
    """A running command whose streams are yours. `SandboxBase.exec` is what most callers want instead."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    async def wait(self) -> int:
        """The exit code, or minus the signal that ended it."""

    def kill(self) -> None:
        """Request the end of the process and everything it started; `wait` returns once it has ended."""

    def close(self) -> None:
        """Close the streams. Does not end the process."""


class CommandJob(Protocol):
    """A command that runs in the background with its output collected."""

    @property
    def done(self) -> bool: ...

    async def wait(self) -> ExecResult: ...

    async def kill(self) -> None: ...


class Sandbox(Protocol):
    """One isolated system with its own files and processes."""

    id: str
    spec: SandboxSpec

    @property
    def closed(self) -> bool: ...

    @property
    def network(self) -> NetworkUse | None:
        """What went through its network and what was refused; None where it has none."""

    @property
    def memory_kills(self) -> int:
        """How often a process in it was refused memory so far; 0 where the backend cannot tell."""

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
        """Run a command to its end. A command that fails is a result, not an exception."""

    async def start(self, command: Command, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> Process:
        """A persistent process, for instance an interpreter to talk to."""

    def background(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> CommandJob:
        """Run a command in the background; without a time-out it may run for the sandbox's lifetime."""

    async def write(self, path: str, data: bytes) -> None:
        """Write a file inside, with the folders above it."""

    async def read(self, path: str, max_bytes: int = 16 * MIB) -> bytes:
        """A file's bytes from inside."""

    async def upload(self, local: str | Path, path: str) -> None:
        """Copy a file or the contents of a folder of the host to a path inside."""

    async def download(
        self, path: str, local: str | Path, max_bytes: int = 256 * MIB, max_files: int = 10_000
    ) -> tuple[str, ...]:
        """Copy a file or a folder from inside to the host; links and special files are left out and returned."""

    async def close(self) -> None:
        """End every process in it and forget its files. May be called again."""


class SandboxBackend(Protocol):
    """A factory of sandboxes. Third parties register theirs in the entry point group `whet.sandboxes`."""

    name: str

    async def check(self) -> None:
        """Raise SandboxUnavailableError, with the command that fixes it, where this backend cannot run."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A new sandbox. Raises SandboxError when the host fails."""
