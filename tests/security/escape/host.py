"""What hostile programs reach for on the host, what must be the same afterwards, and a sandbox to run them in."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import resource
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from whet.sandboxes.bubblewrap import cgroups
from whet.sandboxes.bubblewrap.backend import BubblewrapBackend, BubblewrapSandbox
from whet.sandboxes.protocol import ExecResult, SandboxSpec

SPEC = SandboxSpec(memory_bytes=256 << 20, disk_bytes=32 << 20, processes=32, timeout_s=60)
FOLDERS = ("/", "/etc", "/usr/bin", "/dev", "/boot")
BUSY_FOLDERS = ("/dev/shm", "/dev/mqueue", "/run", "/tmp")  # where others come and go: what programs make has a name
SETTINGS = ("core_pattern", "panic", "hostname", "domainname", "randomize_va_space", "sysrq", "printk")
SETTLED_S = 10.0
"""Within which the process itself has closed what it used; what a program left on the host stays."""
_warm: list[bool] = []
Use = Callable[[BubblewrapSandbox], Coroutine[Any, Any, Any]]


class Host:
    """In a program, SECRET is a file of the host, FOLDER its folder, PORT a port on which the host listens, PID and
    MARKER a process of the host and a pattern for its command line, and ABSTRACT an abstract socket.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secret = folder / "secret"
        self.secret.write_text(secrets.token_hex(16))
        self.secret.chmod(0o666)
        folder.chmod(0o777)
        self.marker = f"victim{secrets.token_hex(8)}"
        self.abstract = f"whet-{self.marker}"
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.setblocking(False)
        self.hidden = socket.socket(socket.AF_UNIX)
        self.hidden.bind("\0" + self.abstract)
        self.hidden.listen()
        self.hidden.setblocking(False)
        wait = "import sys; sys.stdin.read()"
        self.victim = subprocess.Popen([sys.executable, "-c", wait, self.marker], stdin=subprocess.PIPE)
        for _ in range(500):  # its arguments are there a moment after it
            if self.marker in (_text(f"/proc/{self.victim.pid}/cmdline") or ""):
                break
            time.sleep(0.01)

    @property
    def port(self) -> int:
        return int(self.server.getsockname()[1])

    def fill(self, program: str, **more: object) -> str:
        words: dict[str, object] = {"SECRET": self.secret, "FOLDER": self.folder, "PORT": self.port}
        pattern = f"[{self.marker[0]}]{self.marker[1:]}"  # for grep, which must not find itself
        words |= {"MARKER": pattern, "ABSTRACT": self.abstract, "PID": self.victim.pid, **more}
        for word, value in words.items():
            program = program.replace(word, str(value))
        return program

    def state(self) -> dict[str, object]:
        """Files, processes, settings, limits and sockets of the host that a program could have touched."""
        watched = (*FOLDERS, os.path.expanduser("~"), str(self.folder))
        return {
            "secret": (self.secret.read_text(), self.secret.stat().st_mode, self.secret.stat().st_nlink),
            "files": {path: sorted(os.listdir(path)) for path in watched if os.path.isdir(path)},
            "intruders": [str(path) for folder in BUSY_FOLDERS for path in Path(folder).glob("intruder*")],
            "accounts": hashlib.sha256(Path("/etc/passwd").read_bytes()).hexdigest(),
            "mounts": hashlib.sha256(Path("/proc/self/mounts").read_bytes()).hexdigest(),
            "settings": {name: _text(f"/proc/sys/kernel/{name}") for name in SETTINGS},
            "victim": self.victim.poll(),
            "processes": descendants(os.getpid()),
            "environment": dict(os.environ),
            "limits": [resource.getrlimit(kind) for kind in range(16)],
            "out of memory first": _text("/proc/self/oom_score_adj"),
            "control groups": own_groups(),
            "sockets": listening(),
            "connections": [connected(self.server), connected(self.hidden)],
            "open files": set(opened()),
        }

    def changes(self, before: dict[str, object]) -> dict[str, object]:
        """What differs from a state of before. Of sets, what is new: what earlier tests left may end at any moment."""
        after = self.state()
        return {key: (before[key], after[key]) for key in before if _differ(before[key], after[key])}

    def close(self) -> None:
        self.victim.kill()
        self.victim.communicate()
        self.server.close()
        self.hidden.close()


def descendants(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(entry)] = int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found: set[int] = set()
    layer = {root}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer} - found
        found |= layer
    return found


def own_groups() -> list[str]:
    parents, _ = cgroups.parents_of_groups(Path("/"))
    prefix = f"{cgroups.PREFIX}{os.getpid()}-"
    return sorted(str(path) for parent in set(parents.values()) for path in parent.glob(f"{prefix}*"))


def opened() -> Iterator[tuple[str, str]]:
    """Descriptors of this process, and what each one is open on."""
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own descriptor
            yield entry, os.readlink(f"/proc/self/fd/{entry}")


def listening() -> set[str]:
    """Inodes of this process's own sockets that listen; other processes of the machine come and go."""
    own = {name for _, name in opened()}
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    inodes = {f"socket:[{line.split()[9]}]" for line in lines if line.split()[3] == "0A"}
    return inodes & own


def connected(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def _differ(before: object, after: object) -> bool:
    if isinstance(before, set) and isinstance(after, set):
        return bool(after - before)
    return before != after


def _text(path: str) -> str | None:
    return Path(path).read_text() if os.path.exists(path) else None


def used(host: Host, use: Use, spec: SandboxSpec = SPEC) -> Any:
    """Use a sandbox, and see that it still answers, that it ends, and that nothing outside has changed."""

    async def run() -> tuple[Any, dict[str, object]]:
        backend = BubblewrapBackend()
        if not _warm:  # what a process opens once is open from now on
            async with await backend.create(SPEC):
                _warm.append(True)
        before = host.state()
        async with await backend.create(spec) as sandbox:
            value = await use(sandbox)
            alive = await sandbox.exec("echo alive")
        assert alive.stdout == "alive\n", "the sandbox did not survive what ran in it"
        deadline = time.monotonic() + SETTLED_S
        while set(changes := host.changes(before)) == {"open files"} and time.monotonic() < deadline:
            await asyncio.sleep(0.05)  # asyncio closes a connection in one of the loop's next turns
        return value, changes

    value, changes = asyncio.run(run())
    assert not changes, changes
    return value


def contained(host: Host, command: list[str], spec: SandboxSpec = SPEC, **options: Any) -> ExecResult:
    """Run a program in a sandbox of its own. It prints ESCAPED when what it tried has worked."""
    result = used(host, lambda sandbox: sandbox.exec(command, cwd="/home/user", **options), spec)
    assert isinstance(result, ExecResult)
    assert "ESCAPED" not in result.stdout, result.stdout
    assert host.secret.read_text() not in result.stdout + result.stderr
    return result
