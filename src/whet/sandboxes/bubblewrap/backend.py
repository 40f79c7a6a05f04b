"""The default sandbox on Linux: namespaces, a read-only system, a seccomp filter and limits, through bubblewrap.

One `bwrap` per sandbox, whose process 1 is `guest.py`; commands are started by it on request, with pipes that the
host passes, so that output goes directly to the host. The sandbox ends with this process, with its own process
1, or with `close`; in each case the kernel ends everything in it. Spawning happens on threads of its own: the event
loop never waits for a fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from whet.errors import SandboxError
from whet.sandboxes.base import SandboxBase
from whet.sandboxes.bubblewrap import cgroups
from whet.sandboxes.bubblewrap.command import (
    GUEST,
    OWN_FILES,
    Descriptors,
    arguments,
    environment,
    rlimits,
    room,
)
from whet.sandboxes.bubblewrap.host import Host, host
from whet.sandboxes.bubblewrap.layout import layout_of_image
from whet.sandboxes.bubblewrap.users import SandboxUser
from whet.sandboxes.network.allow_list import AllowList, NetworkUse
from whet.sandboxes.network.dial import Dialer
from whet.sandboxes.network.proxy import AllowListProxy
from whet.sandboxes.permits import Permits
from whet.sandboxes.processes import GuestProcess, pipes
from whet.sandboxes.protocol import HOME, SandboxSpec

START_S = 30.0
CLOSE_S = 10.0
BUSY_S = 0.01  # before the next attempt to send a command, when a hundred are queued already
OWN_PROCESSES = 16  # process 1 and supervisors, on top of what the code may have

# A thousand rollouts may start a command or end in the same moment; the event loop does other work in between.
_turns = Permits(4)

# --die-with-parent binds a sandbox to the *thread* that made it; these live as long as the process.
_spawners = ThreadPoolExecutor(max_workers=4, thread_name_prefix="whet-sandbox")


class BubblewrapBackend:
    """Makes bubblewrap sandboxes."""

    name = "bubblewrap"

    async def check(self) -> None:
        """Raise SandboxUnavailableError where bubblewrap is missing or the kernel forbids it."""
        await asyncio.get_running_loop().run_in_executor(_spawners, host)

    async def create(self, spec: SandboxSpec) -> BubblewrapSandbox:
        """A sandbox that is ready for commands. Raises SandboxError when it does not start."""
        loop = asyncio.get_running_loop()
        machine = await loop.run_in_executor(_spawners, host)
        if spec.root:
            try:
                layout = await loop.run_in_executor(_spawners, layout_of_image, Path(spec.root))
            except OSError as error:
                raise SandboxError(f"root={spec.root!r} cannot be read: {error}") from error
            machine = replace(machine, layout=layout)
        sandbox = BubblewrapSandbox(spec, machine)
        spawning = loop.run_in_executor(_spawners, _spawn, sandbox.id, spec, machine)
        try:
            await sandbox._attach(await asyncio.shield(spawning))
        except BaseException:
            if sandbox._guest is None:  # cancelled while the thread was still running
                spawning.add_done_callback(_discard)
            await sandbox.close()
            raise
        return sandbox


@dataclass(frozen=True, slots=True)
class _Guest:
    """A spawned bubblewrap, blocked before its first instruction until it was put into its control group."""

    bwrap: subprocess.Popen[bytes]
    pidfd: int  # of process 1 inside
    channel: socket.socket
    stderr: int
    group: cgroups.Cgroup | None
    user: SandboxUser | None

    def said(self) -> str:
        os.lseek(self.stderr, 0, os.SEEK_SET)
        return os.read(self.stderr, 4096).decode(errors="replace").strip() or "it said nothing"

    def kill(self) -> None:
        """Killing process 1 ends every other process."""
        if sys.platform != "linux":  # `host` has checked it; repeated for type checkers on other systems
            raise AssertionError
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.bwrap.kill()

    def release(self) -> None:
        """After its end. On a thread: waiting for it and removing its group may take milliseconds."""
        self.bwrap.wait()
        os.close(self.pidfd)
        os.close(self.stderr)
        self.channel.close()
        if self.group is not None:
            self.group.remove()
        if self.user is not None:
            self.user.release()


class BubblewrapSandbox(SandboxBase):
    """A running bubblewrap."""

    def __init__(self, spec: SandboxSpec, machine: Host) -> None:
        super().__init__("bubblewrap", spec)
        if self._idle is not None:
            self._idle.cancel()  # until it has started
        self._machine = machine
        self._guest: _Guest | None = None
        self._proxy: AllowListProxy | None = None
        self._allowed = AllowList.parse(spec.network)
        self._variables = self._allowed.variables() if spec.has_network else {}
        self._names = itertools.count(1)
        self._counted: tuple[int, int] | None = None  # once its group is about to go
        self._statuses: dict[str, asyncio.Future[int]] = {}
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()

    @property
    def pid(self) -> int | None:
        """Process id of bubblewrap on this machine; None until it has started."""
        return None if self._guest is None else self._guest.bwrap.pid

    @property
    def network(self) -> NetworkUse | None:
        """What went through the proxy and what was refused; None in a sandbox without a network."""
        return None if self._proxy is None else self._proxy.use

    async def _attach(self, guest: _Guest) -> None:
        self._guest = guest
        self._loop.add_reader(guest.channel.fileno(), self._hear)
        self._loop.add_reader(guest.pidfd, self._died)
        either: set[asyncio.Future[None]] = {self._ready, self._gone}
        await asyncio.wait(either, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            raise SandboxError(f"sandbox {self.id} did not start: {guest.said()}")
        self._count(0)  # idle time begins now

    def _hear(self) -> None:
        """What process 1 reports. The code cannot reach it; still only numbers are accepted from it."""
        guest = self._guest
        assert guest is not None
        while True:
            try:
                said, descriptors, _, _ = socket.recv_fds(guest.channel, 256, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                said, descriptors = b"", []
            words = said.split()
            if words == [b"listener"] and not self._ready.done() and self._proxy is None:
                self._serve(socket.socket(fileno=descriptors.pop()))
                continue
            for descriptor in descriptors:  # the only message
                os.close(descriptor)
            if not words:
                self._loop.remove_reader(guest.channel.fileno())
                return
            if words[0] == b"ready" and not self._ready.done():
                self._ready.set_result(None)
                continue
            future = self._statuses.pop(words[1].decode("ascii", "replace"), None) if len(words) > 1 else None
            if future is not None and not future.done():
                future.set_result(int(words[2]) if words[0] == b"exit" else NO_PROCESS)

    def _serve(self, listener: socket.socket) -> None:
        spec = self.spec
        dialer = Dialer(self._allowed, origin=spec.origin)
        self._proxy = AllowListProxy(
            self.id, listener, dialer, spec.network_connections, spec.network_bytes, idle_s=spec.network_idle_s
        )

    def _died(self) -> None:
        """Process 1 and with it everything inside has ended."""
        assert self._guest is not None
        self._loop.remove_reader(self._guest.pidfd)
        self._hear()
        self._counted = self._counters()
        if self._counted[0] > 0 and self._why_closed is None:  # the last that the kernel took when memory ran out
            self._end_by_code("its code used up the memory, down to the first process", "memory")
        self._gone.set_result(None)
        for future in self._statuses.values():
            if not future.done():
                future.set_result(-signal.SIGKILL)
        self._statuses.clear()
        self._end("its first process ended")

    async def _start(self, argv: list[str], cwd: str | None, env: dict[str, str]) -> GuestProcess:
        assert self._guest is not None
        name = str(next(self._names))
        variables = [
            f"{key}={value}" for key, value in environment(self._machine.layout, self._variables | env).items()
        ]
        grouped = self._guest.group is not None and "memory" in self._guest.group.directories
        share = self._machine.launcher.share
        fields = ["run", name, cwd or HOME, rlimits(self.spec, grouped, share), str(len(variables)), *variables, *argv]
        packet = b"\0".join(os.fsencode(field) for field in fields)
        turn = await _turns.take(self.id)
        try:
            return await self._hand_over(name, packet)
        finally:
            _turns.give_back(turn)

    async def _hand_over(self, name: str, packet: bytes) -> GuestProcess:
        theirs, ours = pipes()
        exited: asyncio.Future[int] = self._loop.create_future()
        self._statuses[name] = exited
        process = GuestProcess(exited, functools.partial(self._kill, name))
        try:
            await process.connect(*ours)
            await self._send(packet, theirs)
        except BaseException:
            self._statuses.pop(name, None)
            process.close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        return process

    async def _send(self, packet: bytes, fds: tuple[int, ...] = ()) -> None:
        assert self._guest is not None
        channel = self._guest.channel
        while True:
            if self._gone.done():
                raise SandboxError(f"sandbox {self.id} is closed: {self._why_closed}.")
            try:
                socket.send_fds(channel, [packet], list(fds))
                return
            except BlockingIOError:  # its queue is full
                await asyncio.sleep(BUSY_S)
            except OSError as error:
                raise SandboxError(f"sandbox {self.id} does not take commands: {error}") from error

    def _kill(self, name: str) -> None:
        if name in self._statuses and not self._gone.done():
            sending = self._loop.create_task(self._send(b"kill\0" + name.encode()))
            sending.add_done_callback(lambda task: task.cancelled() or task.exception())  # it has ended already

    def _counters(self) -> tuple[int, int]:
        if self._counted is not None:
            return self._counted
        group = self._guest.group if self._guest is not None else None
        return (group.killed_for_memory(), group.refused_processes()) if group is not None else (0, 0)

    def abandon(self) -> None:
        """Kill it and leave the rest to a thread."""
        if self._guest is not None and self._why_closed is None:
            self._why_closed = "its event loop has ended"
            self._guest.kill()
            _spawners.submit(self._guest.release)

    async def _close(self) -> None:
        guest = self._guest
        if guest is None:
            return
        turn = await _turns.take(self.id)
        try:
            guest.kill()
        finally:
            _turns.give_back(turn)
        if self._proxy is not None:
            await self._proxy.close()
        done, _ = await asyncio.wait({self._gone}, timeout=CLOSE_S)
        for fd in (guest.channel.fileno(), guest.pidfd):
            self._loop.remove_reader(fd)
        if not done:
            raise SandboxError(f"sandbox {self.id}: the kernel has not ended its processes in {CLOSE_S:g} s.")
        await self._loop.run_in_executor(_spawners, guest.release)


NO_PROCESS = 254  # process 1 could not fork: the sandbox is full


def _memory_file(content: bytes, closing: contextlib.ExitStack) -> int:
    if sys.platform != "linux":
        raise AssertionError
    fd = os.memfd_create("whet")
    closing.callback(os.close, fd)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _spawn(name: str, spec: SandboxSpec, machine: Host) -> _Guest:
    """Start bubblewrap and put it into its control group before anything inside runs. On a thread."""
    if sys.platform != "linux":
        raise AssertionError
    with contextlib.ExitStack() as always, contextlib.ExitStack() as on_failure:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        on_failure.callback(ours.close)
        (info_read, info_write), (block_read, block_write) = os.pipe(), os.pipe()
        info = always.enter_context(os.fdopen(info_read, "rb"))
        always.callback(os.close, block_write)
        stderr = os.memfd_create("whet")
        on_failure.callback(os.close, stderr)
        user = machine.launcher.claim([*spec.read_only.values(), *([spec.root] if spec.root else [])])
        if user is not None:
            on_failure.callback(user.release)
        with contextlib.ExitStack() as inherited:
            inherited.callback(theirs.close)
            contents = {GUEST: _guest_source(), **{path: text.encode() for path, text in OWN_FILES.items()}}
            files = {path: _memory_file(content, inherited) for path, content in contents.items()}
            filter_ = _memory_file(machine.seccomp, inherited)
            for fd in (info_write, block_read):
                inherited.callback(os.close, fd)
            words = arguments(spec, Descriptors(info_write, block_read, filter_, theirs.fileno(), files), machine)
            split = words.index("--")
            # Not on the command line, which every user of the machine can list.
            options = _memory_file(b"".join(os.fsencode(word) + b"\0" for word in words[:split]), inherited)
            most = room(spec, machine.memory_is_grouped)
            launch = [*machine.launcher.words(user, most.size, most.files), *machine.command]
            fds = [info_write, block_read, filter_, theirs.fileno(), *files.values(), options, *machine.fds]
            try:
                bwrap = subprocess.Popen(
                    [*launch, "--args", str(options), *words[split:]],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    pass_fds=fds,
                    cwd="/",
                    env=machine.env,
                )
            except OSError as error:
                raise SandboxError(f"sandbox {name} did not start: {error}") from error
        try:
            pid = int(json.loads(info.read())["child-pid"])  # all of it, or nothing when bubblewrap gave up
            pidfd = os.pidfd_open(pid)
        except (ValueError, KeyError, OSError):
            bwrap.kill()
            bwrap.wait()
            said = os.pread(stderr, 4096, 0).decode(errors="replace").strip()
            raise SandboxError(f"sandbox {name} did not start: {said or 'bubblewrap said nothing'}") from None
        group = _grouped(name, pid, spec)
        with contextlib.suppress(BrokenPipeError):  # it has given up already, and says why
            os.write(block_write, b"x")
        ours.setblocking(False)
        on_failure.pop_all()
        return _Guest(bwrap, pidfd, ours, stderr, group, user)


def _grouped(name: str, pid: int, spec: SandboxSpec) -> cgroups.Cgroup | None:
    """The process's new control group; None where none can be made or filled, and only the rlimits hold."""
    key = name.removeprefix("bubblewrap-")
    group = cgroups.make(key, spec.memory_bytes, spec.processes + OWN_PROCESSES, spec.cpus)
    if group is not None:
        try:
            group.add(pid)
        except OSError:
            group.remove()
            return None
    return group


def _discard(spawning: asyncio.Future[_Guest]) -> None:
    if not spawning.cancelled() and spawning.exception() is None:
        guest = spawning.result()
        guest.kill()
        _spawners.submit(guest.release)


def _guest_source() -> bytes:
    return (Path(__file__).parent / "guest.py").read_bytes()
