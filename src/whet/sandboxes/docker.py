"""Sandboxes as containers, through the command line of docker or podman.

The container idles, each command is an `exec` into it, and the same limits hold as with bubblewrap. The engine's own
default seccomp filter stays. A command that has to be ended takes the container's other commands with it: from outside,
neither engine can end one command with what it started.

With `SandboxSpec.user` a container is the image as it is: its users, variables and files, and what root may do in one.

Hosts that may be reached, and an origin, are served by the proxy of `network/proxy.py`, as in bubblewrap: the container
has no network, and a listening socket of its loopback is passed to the host by a second one, of whet's own image, that
shares this loopback and then ends. That needs a daemon on this machine, and Linux.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from whet.errors import SandboxError, SandboxFileError, SandboxUnavailableError
from whet.sandboxes import processes
from whet.sandboxes.base import CONTAINER, SandboxBase
from whet.sandboxes.network.allow_list import PROXY_HOST, PROXY_PORT, AllowList, NetworkUse
from whet.sandboxes.network.dial import Dialer
from whet.sandboxes.network.proxy import AllowListProxy
from whet.sandboxes.protocol import HOME, OPEN_NETWORK, Process, SandboxSpec
from whet.sandboxes.registry import install_command
from whet.system.children import began, start

IMAGE = "python:3.13-slim"
USER = "1000:1000"
OWN_CODES = (125, 126, 127, 128 + signal.SIGKILL, 255)  # that an engine uses when it cannot run a command
PREFIX = CONTAINER  # of a container's name, followed by the number of the process that made it
REMOVE = ("rm", "--force", "--volumes")
# Process numbers mean something on one machine only, and several may use one daemon.
_LABEL = f"whet.host={socket.gethostname()}"
_WITHOUT_RIGHTS = ("--cap-drop", "ALL", "--security-opt", "no-new-privileges")
CREATE_S = 600.0  # the first use of an image downloads it
DISK_CHECK_S = 5.0
MOST_CHANGED = 10_000
# The first process of a container, which no signal from inside ends, and which reaps what others leave. With what it
# writes, a size of 0 means that the engine could not tell: podman, where a path is too long for it; docker says -1.
_IDLE = 'echo whet > /etc/whet-box; end=$(($(date +%s) + $1)); while [ "$(date +%s)" -lt "$end" ]; do sleep 5; done'
_LISTEN = f"""import socket
listener, channel = socket.create_server(("{PROXY_HOST}", {PROXY_PORT}), backlog=128), socket.socket(socket.AF_UNIX)
channel.connect("/channel/socket")
socket.send_fds(channel, [b"listener"], [listener.fileno()])
"""
# Of what engines grant to root by default, what package managers and `su` need.
_ROOT = "CHOWN DAC_OVERRIDE FOWNER FSETID KILL NET_BIND_SERVICE SETFCAP SETGID SETUID SYS_CHROOT"


class DockerBackend:
    """Makes containers with `program`, or with docker or podman, whichever is there."""

    name = "docker"

    def __init__(self, program: str | None = None) -> None:
        self._program = program
        self._checked = False

    async def check(self) -> None:
        """Raise SandboxUnavailableError where there is no program or its daemon does not answer."""
        program = self.program()
        code, _, said = await processes.run([program, "version", "--format", "{{.Server.Version}}"], timeout_s=60.0)
        if code != 0:
            advice = "podman machine start" if program.endswith("podman") else "sudo systemctl start docker"
            raise SandboxUnavailableError(f"{program} does not answer: {said.strip()} Start it with: {advice}")
        self._checked = True
        await self._sweep(program)

    async def _sweep(self, program: str) -> None:
        """Remove the containers of processes on this machine that were killed before they could."""
        code, names, _ = await processes.run([program, *list_arguments()], timeout_s=60.0)
        for name in names.split() if code == 0 else []:
            pid = name.removeprefix(PREFIX + "-").split("-")[0]
            if name.startswith(PREFIX) and pid.isdigit() and began(int(pid)) is None:
                await processes.run([program, *REMOVE, name], timeout_s=60.0)

    def program(self) -> str:
        path = shutil.which(self._program) if self._program else shutil.which("docker") or shutil.which("podman")
        if path is None:
            what = self._program or "docker or podman"
            raise SandboxUnavailableError(
                f"the docker sandbox needs {what}. Install one with: {install_command('podman')}"
            )
        return path

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        """A running container. Raises SandboxError with what the engine said when it does not start."""
        if sys.platform != "linux" and tuple(spec.network) != OPEN_NETWORK:
            spec.refuse_network("in a container", "whose loopback whet's proxy reaches on Linux alone")
        if not self._checked:
            await self.check()
        sandbox = DockerSandbox(spec, self.program())
        try:
            code, _, said = await processes.run([sandbox.program, *run_arguments(sandbox.id, spec)], timeout_s=CREATE_S)
            if code != 0:
                raise SandboxError(f"sandbox {sandbox.id} did not start: {said.strip()}")
            if sandbox.is_served:
                await sandbox.serve()
        except TimeoutError:
            await sandbox.close()
            raise SandboxError(f"sandbox {sandbox.id} did not start in {CREATE_S:g} s.") from None
        except BaseException:
            await sandbox.close()
            raise
        return sandbox


class DockerSandbox(SandboxBase):
    """A running container."""

    def __init__(self, spec: SandboxSpec, program: str) -> None:
        super().__init__(PREFIX, spec)
        self.program = program
        self._endings: set[asyncio.Task[tuple[int, str, str]]] = set()
        self._disk = self._loop.create_task(self._watch_disk()) if spec.user else None
        is_open = tuple(spec.network) == OPEN_NETWORK
        self.is_served = spec.origin is not None or (bool(spec.network) and not is_open)
        self._allowed = AllowList.parse(() if is_open else spec.network)
        self._variables = self._allowed.variables() if self.is_served and not is_open else {}
        self._proxy: AllowListProxy | None = None

    @property
    def network(self) -> NetworkUse | None:
        """What went through the proxy and what was refused; None in a sandbox without one."""
        return None if self._proxy is None else self._proxy.use

    async def serve(self) -> None:
        """Serve its loopback. Raises SandboxError where the engine cannot pass the socket."""
        spec = self.spec
        with tempfile.TemporaryDirectory(prefix="whet-") as private, socket.socket(socket.AF_UNIX) as server:
            folder = Path(private, "channel")
            folder.mkdir()
            server.bind(str(folder / "socket"))
            (folder / "socket").chmod(0o666)  # root of the container is another user, in a folder for this one alone
            server.listen(1)
            server.setblocking(False)
            args = ["run", "--rm", "--name", f"{self.id}-listener", "--network", f"container:{self.id}"]
            args += ["--label", _LABEL, "--user", "0:0", *_WITHOUT_RIGHTS, "--security-opt", "label=disable"]
            args += ["--ulimit", "nofile=1024"]
            args += ["--read-only", "--volume", f"{folder}:/channel", "--entrypoint", "python3", IMAGE, "-c", _LISTEN]
            code, _, said = await processes.run([self.program, *args], timeout_s=CREATE_S)
            if code != 0:
                raise SandboxError(f"sandbox {self.id}: its loopback cannot be served: {said.strip()}")
            accepted, _ = server.accept()  # it has connected before it ended
            with accepted:
                _, [descriptor], _, _ = socket.recv_fds(accepted, 64, 1, socket.MSG_CMSG_CLOEXEC)
        dialer = Dialer(self._allowed, origin=spec.origin)
        listener, limits = socket.socket(fileno=descriptor), (spec.network_connections, spec.network_bytes)
        self._proxy = AllowListProxy(self.id, listener, dialer, *limits, idle_s=spec.network_idle_s)

    async def _start(self, argv: list[str], cwd: str | None, env: dict[str, str]) -> Process:
        await asyncio.gather(*self._endings, return_exceptions=True)  # or they end this command as well
        words = exec_arguments(self.id, argv, cwd, self._variables | env, self.spec.user)
        process = await processes.start([self.program, *words])
        return _ContainerProcess(process, self._end_all, self._check_running)

    async def _check_running(self) -> None:
        """Raise SandboxError when the container has ended, by the engine's state: the code could fake its messages.

        One that ended when the code had used up its memory is the code's failure: files are memory and outlive it.
        """
        inspect = [self.program, "inspect", "--format", "{{.State.Running}} {{.State.OOMKilled}}", self.id]
        code, out, said = await processes.run(inspect, timeout_s=60.0)
        running, _, out_of_memory = out.strip().partition(" ")
        if code == 0 and running == "false" and out_of_memory == "true":
            self._end_by_code("its code used up the memory, down to the first process", "memory")
        elif code == 0 and running == "false" and self.spec.user:  # root may end the first process, through ptrace
            self._end_by_code("its code ended the first process", "processes")
        elif code != 0 or running != "true":
            raise SandboxError(f"its container does not run any more. {said.strip()}")

    def _end_all(self) -> None:
        """Everything in the container that is the code's."""
        kill = ["exec", "--user", "0:0" if self.spec.user else USER, self.id, "sh", "-c", "kill -KILL -1"]
        ending = processes.run([self.program, *kill], timeout_s=30.0)
        task = self._loop.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[tuple[int, str, str]]) -> None:
        self._endings.discard(task)
        task.cancelled() or task.exception()  # which is retrieved here

    async def changed_paths(self) -> set[str]:
        """What differs from the image, down to the second folder of each path.

        Raises SandboxFileError where the code has ended the container, and SandboxError.
        """
        changed: set[str] = set()
        rest = end = b""

        def take(chunk: bytes) -> None:
            nonlocal rest, end
            end = (end + chunk)[-100:]
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[:4096]  # of a line without an end
            if len(changed) < MOST_CHANGED:  # names may have ends of lines in them, and be made to look like paths
                paths = (line[2:].decode(errors="replace") for line in lines if re.match(rb"[ACD] /", line))
                changed.update("/".join(path.split("/")[:3]) for path in paths)

        code = await processes.read([self.program, "diff", self.id], timeout_s=CREATE_S, take=take)
        if code != 0:
            if self._ended_by is not None:
                raise SandboxFileError(f"sandbox {self.id} is closed: {self._why_closed}.")
            if b"file name too long" in end:
                raise SandboxFileError(f"sandbox {self.id}: a path of its code is too long to list what changed.")
            raise SandboxError(f"sandbox {self.id}: {self.program} diff failed with exit code {code}.")
        return changed

    async def _watch_disk(self) -> None:
        """End it once its code has written more than its disk: engines limit the files of an image on few systems."""
        size = [self.program, "inspect", "--size", "--format", "{{.State.Running}} {{.SizeRw}}", self.id]
        while not self.closed:
            await asyncio.sleep(DISK_CHECK_S)
            with contextlib.suppress(TimeoutError):
                code, said, _ = await processes.run(size, timeout_s=60.0)
                running, _, written = said.strip().partition(" ")
                if code != 0 or running != "true":
                    continue
                if written in ("0", "-1"):
                    self._end_by_code("its disk cannot be measured, as with paths that are too long", "file_size")
                elif written.isdigit() and int(written) > self.spec.disk_bytes:
                    self._end_by_code(f"its code wrote more than its {self.spec.disk_bytes >> 20} MiB", "file_size")

    def abandon(self) -> None:
        start([self.program, *REMOVE, self.id], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def _close(self) -> None:
        if self._disk is not None:
            self._disk.cancel()
        if self._proxy is not None:
            await self._proxy.close()
        code, _, said = await processes.run([self.program, *REMOVE, self.id], timeout_s=60.0)
        if code != 0 and "no such container" not in said.lower():
            raise SandboxError(f"sandbox {self.id} could not be removed: {said.strip()}")


class _ContainerProcess(processes.HostProcess):
    def __init__(
        self,
        process: asyncio.subprocess.Process,
        on_kill: Callable[[], None],
        check_running: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(process, on_kill)
        self._check_running = check_running

    def kill(self) -> None:
        if self._process.returncode is None:  # what it left behind goes on until something else is ended
            super().kill()

    async def wait(self) -> int:
        """The engine reports a command's signal as 128 plus its number, and its own troubles as a command's code."""
        code = await super().wait()
        if code in OWN_CODES:
            await self._check_running()
        return -signal.SIGKILL if code == 128 + signal.SIGKILL else code


def run_arguments(name: str, spec: SandboxSpec) -> list[str]:
    """`docker run` for an idle container with a sandbox's limits. It ends by itself at the end of its lifetime."""
    disk = f"rw,nosuid,nodev,exec,size={spec.disk_bytes},mode=1777"  # podman takes no owner
    args = ["run", "--detach", "--name", name, "--hostname", "sandbox", "--stop-signal", "KILL"]
    args += ["--label", _LABEL, *_WITHOUT_RIGHTS]
    args += [] if tuple(spec.network) == OPEN_NETWORK else ["--network", "none"]
    # The process that idles is root's: what ends all of the code's processes spares it.
    args += ["--user", "0:0"]
    if spec.user:
        args += [word for capability in _ROOT.split() for word in ("--cap-add", capability)]
    else:
        args += ["--read-only", "--workdir", HOME, "--env", f"HOME={HOME}", "--env", "TMPDIR=/tmp"]
    for path in (*(() if spec.user else (HOME, "/tmp")), *spec.writable):
        args += ["--tmpfs", f"{path}:{disk}"]
    args += ["--cpus", f"{spec.cpus:g}", "--memory", str(spec.memory_bytes), "--memory-swap", str(spec.memory_bytes)]
    args += ["--pids-limit", str(spec.processes), "--ulimit", f"fsize={spec.file_bytes}"]
    for inside, folder in spec.read_only.items():
        args += ["--volume", f"{folder}:{inside}:ro"]
    args += ["--ulimit", f"cpu={spec.cpu_time_s}", "--ulimit", "core=0", "--ulimit", "nofile=1024"]
    idle = ["-c", _IDLE, "sh", str(int(spec.lifetime_s) + 60)]
    return [*args, "--entrypoint", "sh", spec.image or IMAGE, *idle]


def list_arguments() -> list[str]:
    """`docker ps` for the names of this machine's containers."""
    return ["ps", "--all", "--filter", f"label={_LABEL}", "--format", "{{.Names}}"]


def exec_arguments(name: str, argv: list[str], cwd: str | None, env: dict[str, str], user: str = "") -> list[str]:
    """`docker exec` for one command."""
    args = ["exec", "--interactive", "--user", user or USER, "--workdir", cwd or ("/" if user else HOME)]
    for key, value in env.items():
        args += ["--env", f"{key}={value}"]
    return [*args, name, *argv]
