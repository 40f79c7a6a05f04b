"""Sandboxes as containers, through the command line of docker or podman.

The container idles, each command is an `exec` into it, and the same limits hold as with bubblewrap. The engine's own
default seccomp filter stays. A command that has to be ended takes the container's other commands with it: from outside,
neither engine can end one command with what it started.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable

from whet.errors import SandboxError, SandboxUnavailableError
from whet.sandboxes import processes
from whet.sandboxes.base import SandboxBase
from whet.sandboxes.protocol import HOME, Process, SandboxSpec
from whet.sandboxes.registry import install_command
from whet.system.children import began, start

IMAGE = "python:3.13-slim"
USER = "1000:1000"
OWN_CODES = (125, 126, 127, 128 + signal.SIGKILL, 255)  # that an engine uses when it cannot run a command
PREFIX = "whet-docker"  # of a container's name, followed by the number of the process that made it
REMOVE = ("rm", "--force", "--volumes")
LABEL = "whet.host"  # process numbers mean something on one machine only, and several may use one daemon
CREATE_S = 600.0  # the first use of an image downloads it


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
        spec.refuse_network("in a container", "whose network whet's proxy does not reach")
        if not self._checked:
            await self.check()
        sandbox = DockerSandbox(spec, self.program())
        try:
            code, _, said = await processes.run([sandbox.program, *run_arguments(sandbox.id, spec)], timeout_s=CREATE_S)
            if code != 0:
                advice = f". Install it with: {install_command('catatonit')}" if "container-init" in said else ""
                raise SandboxError(f"sandbox {sandbox.id} did not start: {said.strip()}{advice}")
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

    async def _start(self, argv: list[str], cwd: str | None, env: dict[str, str]) -> Process:
        process = await processes.start([self.program, *exec_arguments(self.id, argv, cwd, env)])
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
        elif code != 0 or running != "true":
            raise SandboxError(f"its container does not run any more. {said.strip()}")

    def _end_all(self) -> None:
        """Everything in the container that is the code's."""
        kill = ["exec", "--user", USER, self.id, "sh", "-c", "kill -KILL -1"]
        ending = processes.run([self.program, *kill], timeout_s=30.0)
        task = self._loop.create_task(ending)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def abandon(self) -> None:
        start([self.program, *REMOVE, self.id], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def _close(self) -> None:
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

    async def wait(self) -> int:
        """The engine reports a command's signal as 128 plus its number, and its own troubles as a command's code."""
        code = await super().wait()
        if code in OWN_CODES:
            await self._check_running()
        return -signal.SIGKILL if code == 128 + signal.SIGKILL else code


def run_arguments(name: str, spec: SandboxSpec) -> list[str]:
    """`docker run` for an idle container with a sandbox's limits. It ends by itself at the end of its lifetime."""
    disk = f"rw,nosuid,nodev,exec,size={spec.disk_bytes},mode=1777"  # podman takes no owner
    args = ["run", "--detach", "--init", "--name", name, "--hostname", "sandbox"]
    args += ["--label", f"{LABEL}={socket.gethostname()}"]
    args += ["--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    # The process that idles is root's, without a capability: what ends all of the code's processes spares it.
    args += ["--user", "0:0", "--workdir", HOME, "--env", f"HOME={HOME}", "--env", "TMPDIR=/tmp"]
    for path in (HOME, "/tmp", *spec.writable):
        args += ["--tmpfs", f"{path}:{disk}"]
    args += ["--cpus", f"{spec.cpus:g}", "--memory", str(spec.memory_bytes), "--memory-swap", str(spec.memory_bytes)]
    args += ["--pids-limit", str(spec.processes), "--ulimit", f"fsize={spec.file_bytes}"]
    for inside, folder in spec.read_only.items():
        args += ["--volume", f"{folder}:{inside}:ro"]
    args += ["--ulimit", f"cpu={spec.cpu_time_s}", "--ulimit", "core=0", "--ulimit", "nofile=1024"]
    return [*args, "--entrypoint", "sleep", spec.image or IMAGE, str(int(spec.lifetime_s) + 60)]


def list_arguments() -> list[str]:
    """`docker ps` for the names of this machine's containers."""
    return ["ps", "--all", "--filter", f"label={LABEL}={socket.gethostname()}", "--format", "{{.Names}}"]


def exec_arguments(name: str, argv: list[str], cwd: str | None, env: dict[str, str]) -> list[str]:
    """`docker exec` for one command."""
    args = ["exec", "--interactive", "--user", USER, "--workdir", cwd or HOME]
    for key, value in env.items():
        args += ["--env", f"{key}={value}"]
    return [*args, name, *argv]
