"""Hostile programs, each in a real bubblewrap, with the host's state compared before and after.

Each program prints ESCAPED only when what it tried has worked; how it fails otherwise does not matter. In a program,
SECRET is a file of the host, FOLDER its folder, PORT a port on which the host listens, PID and MARKER a process of the
host and a pattern for its command line, and ABSTRACT an abstract socket. Bombs, floods and what will not die are in
test_escape_limits.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from whet.sandboxes.bubblewrap import BubblewrapBackend
from whet.sandboxes.protocol import ExecResult, SandboxSpec

pytestmark = pytest.mark.usefixtures("bubblewrap")
SPEC = SandboxSpec(memory_bytes=256 << 20, disk_bytes=32 << 20, processes=32, timeout_s=10)

_CALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
"""


def call(number: str, *arguments: str) -> str:
    """A system call by number, which succeeds only where the sandbox leaks."""
    words = ", ".join((number, *arguments))
    return f"{_CALL}\nresult = libc.syscall({words})\nprint('ESCAPED' if result >= 0 else ctypes.get_errno())"


SHELL = {
    # The host's files
    "reads a file of the host": "cat SECRET && echo ESCAPED",
    "reads the password hashes": "cat /etc/shadow && echo ESCAPED",
    "reads the machine id": "cat /etc/machine-id && echo ESCAPED",
    "reads the host's user list": "grep '^root:' /etc/passwd && echo ESCAPED",
    "lists root's home": "ls /root && echo ESCAPED",
    "lists the host's homes": "ls /home | grep -v -x -e user -e tmp && echo ESCAPED",
    "lists the host's temporary folder": "ls FOLDER && echo ESCAPED",
    "finds the docker socket": "ls /var/run/docker.sock /run/docker.sock && echo ESCAPED",
    "finds run-time sockets of the host": "ls /run | grep -v -x whet && echo ESCAPED",
    "writes into the system": "touch /usr/bin/intruder && echo ESCAPED",
    "writes into the root": "touch /intruder && echo ESCAPED",
    "writes into /etc": "touch /etc/intruder || echo 'x:x:0:0::/:' >> /etc/passwd && echo ESCAPED",
    "replaces a system program": "mv /usr/bin/env /usr/bin/env2 && echo ESCAPED",
    "writes a device folder": "touch /dev/intruder && echo ESCAPED",
    "follows a symbolic link to the host": "ln -s SECRET link; cat link && echo ESCAPED",
    "makes a hard link to a system file": "ln /usr/bin/env here && echo ESCAPED",
    "climbs out with dots": "cat ../../../../../../../..SECRET && echo ESCAPED",
    "reads the raw disk": "head -c 1 /dev/sda || head -c 1 /dev/vda && echo ESCAPED",
    "makes a device file": "mknod disk b 8 0 && echo ESCAPED",
    "reads the host through another process's root": "cat /proc/1/rootSECRET && echo ESCAPED",
    "reads the host through its working directory": "cat /proc/1/cwd/../..SECRET && echo ESCAPED",
    # The host's environment and processes
    "reads the host's environment": "env | grep -q WHET_HOST_SECRET && echo ESCAPED",
    "reads the first process's environment": "grep -a WHET_HOST_SECRET /proc/1/environ && echo ESCAPED",
    "reads every process's environment": "cat /proc/[0-9]*/environ | grep -a WHET_HOST_SECRET && echo ESCAPED",
    "opens the first process's files": "ls /proc/1/fd && echo ESCAPED",
    "finds a process of the host": "cat /proc/[0-9]*/cmdline | grep -a MARKER && echo ESCAPED",
    "signals a process of the host": "kill -9 PID && echo ESCAPED",
    "kills its first process": "kill -9 1; kill -TERM 1; kill -INT 1; sleep 0.05; true",
    "kills everything it can see": "kill -9 -1",
    "signals its parent": "kill -9 $PPID",
    # Kernel settings
    "writes a kernel setting": "echo 1 > /proc/sys/kernel/panic && echo ESCAPED",
    "sets the core dump handler": "echo '|/bin/sh' > /proc/sys/kernel/core_pattern && echo ESCAPED",
    "presses a system request key": "echo b > /proc/sysrq-trigger && echo ESCAPED",
    "writes sysfs": "ls /sys/kernel && echo ESCAPED",
    "changes its control group": "ls /sys/fs/cgroup && echo ESCAPED",
    "reads kernel memory": "head -c 1 /dev/mem || head -c 1 /dev/kmem || head -c 1 /proc/kcore && echo ESCAPED",
    "reads the kernel log": "dmesg && echo ESCAPED",
    "sets the clock": "date -s 2001-01-01 && echo ESCAPED",
    "sets the host name": "hostname intruder && echo ESCAPED",
    "loads a kernel module": "modprobe dummy && echo ESCAPED",
    # Privileges
    "becomes root with su": "su -c true root && echo ESCAPED",
    "becomes root with sudo": "sudo -n true && echo ESCAPED",
    "makes a set-user-id program": "cp /usr/bin/id . && chmod 4755 id && ./id -u | grep -x 0 && echo ESCAPED",
    "mounts a file system": "mount -t tmpfs none /tmp && echo ESCAPED",
    "remounts the root": "mount -o remount,rw / && echo ESCAPED",
    "makes a user namespace": "unshare --user --map-root-user true && echo ESCAPED",
    "starts a sandbox of its own": "bwrap --unshare-user --ro-bind / / true && echo ESCAPED",
    "enters a namespace": "nsenter --target 1 --mount true && echo ESCAPED",
    "types into a terminal": "echo x > /dev/tty && echo ESCAPED",
    "raises its process limit": "bash -c 'ulimit -u unlimited' && echo ESCAPED",
    "raises its data limit": "ulimit -d unlimited && echo ESCAPED",
    "raises its priority": "nice -n -10 true 2>&1 | grep -q . || echo ESCAPED",
}

PYTHON = {
    # The network
    "reaches a server on the host's loopback": """
import socket
try: socket.create_connection(("127.0.0.1", PORT), 2); print("ESCAPED")
except OSError as error: print(error)
""",
    "reaches a metadata address": """
import socket
try: socket.create_connection(("169.254.169.254", 80), 2); print("ESCAPED")
except OSError as error: print(error)
""",
    "reaches the internet": """
import socket
for address in (("1.1.1.1", 53), ("2606:4700:4700::1111", 53)):
    try: socket.create_connection(address, 2); print("ESCAPED")
    except OSError as error: print(error)
""",
    "resolves a name": """
import socket
try: socket.getaddrinfo("example.com", 80); print("ESCAPED")
except OSError as error: print(error)
""",
    "sends a datagram out": """
import socket
try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("8.8.8.8", 53)); print("ESCAPED")
except OSError as error: print(error)
""",
    "reaches an abstract socket of the host": """
import socket
try: socket.socket(socket.AF_UNIX).connect("\\0ABSTRACT"); print("ESCAPED")
except OSError as error: print(error)
""",
    "opens a raw socket": """
import socket
try: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); print("ESCAPED")
except OSError as error: print(error)
""",
    "opens a packet socket": """
import socket
try: socket.socket(socket.AF_PACKET, socket.SOCK_RAW); print("ESCAPED")
except OSError as error: print(error)
""",
    "opens a socket to the hypervisor": """
import socket
try: socket.socket(40, socket.SOCK_STREAM); print("ESCAPED")
except OSError as error: print(error)
""",
    "opens a kernel crypto socket": """
import socket
try: socket.socket(38, socket.SOCK_SEQPACKET); print("ESCAPED")
except OSError as error: print(error)
""",
    "opens a netfilter socket": """
import socket
try: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12); print("ESCAPED")
except OSError as error: print(error)
""",
    # Other processes
    "writes into the first process's memory": """
try: open("/proc/1/mem", "r+b"); print("ESCAPED")
except OSError as error: print(error)
""",
    "writes into its supervisor's memory": """
import os
try: open(f"/proc/{os.getppid()}/mem", "r+b"); print("ESCAPED")
except OSError as error: print(error)
""",
    "types with TIOCSTI": """
import fcntl, os
master, slave = os.openpty()
try: fcntl.ioctl(slave, 0x5412, b"x"); print("ESCAPED")
except OSError as error: print(error)
""",
    "removes its address limit and core limit": """
import resource
try: resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20)); print("ESCAPED")
except (OSError, ValueError) as error: print(error)
""",
    "inherits an open file of the host": """
import os
for fd in range(3, 1024):
    try: os.fstat(fd); print("ESCAPED", fd)
    except OSError: pass
""",
}

# x86-64 numbers; elsewhere these are skipped.
SYSTEM_CALLS = {
    "traces itself": call("101", "0", "0", "0", "0"),
    "reads another process's memory": call("310", "1", "0", "0", "0", "0", "0"),
    "opens a kernel keyring": call("250", "0", "-3", "1"),
    "loads a BPF program": call("321", "0", "0", "0"),
    "counts hardware events": call("298", "0", "0", "-1", "-1", "0"),
    "handles page faults of its own": call("323", "0"),
    "sets up io_uring": call("425", "8", "ctypes.create_string_buffer(256)"),
    "clones into new namespaces": call("56", "0x10020011", "0", "0", "0", "0"),
    "hides its flags from the filter with clone3": call("435", "(ctypes.c_ulong * 11)(0x10000000, *[0] * 10)", "88"),
    "changes its root": call("161", "b'/home'"),
    "pivots its root": call("155", "b'/', b'/home'"),
    "opens a file by handle": call("304", "-100", "0", "0"),
    "opens a file system context": call("430", "b'tmpfs'", "0"),
    "reboots": call("169", "0xfee1dead", "672274793", "0x1234567"),
    "turns swap off": call("168", "b'/swap'"),
    "adds port permissions": call("173", "0", "8", "1"),
    "steals a descriptor": call("438", "libc.syscall(434, 1, 0)", "0", "0"),
    "calls through the x32 table": call("0x40000000 + 39"),
    "uses a call newer than the filter": call("463", "0", "0", "0", "0"),
    "sets the personality": call("135", "0x0040000"),
}


class Host:
    """What the programs reach for, and what must be the same afterwards."""

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

    def fill(self, program: str) -> str:
        words = {"SECRET": self.secret, "FOLDER": self.folder, "PORT": self.server.getsockname()[1]}
        pattern = f"[{self.marker[0]}]{self.marker[1:]}"  # for grep, which must not find itself
        words |= {"MARKER": pattern, "ABSTRACT": self.abstract, "PID": self.victim.pid}
        for word, value in words.items():
            program = program.replace(word, str(value))
        return program

    def state(self) -> dict[str, object]:
        """Files, processes, environment and sockets of the host that a program could have touched."""
        watched = ("/", "/etc", "/usr/bin", "/dev", os.path.expanduser("~"))
        return {
            "secret": self.secret.read_text(),
            "files": {path: sorted(os.listdir(path)) for path in (*watched, str(self.folder))},
            "accounts": hashlib.sha256(Path("/etc/passwd").read_bytes()).hexdigest(),
            "victim": self.victim.poll(),
            "processes": sorted(descendants(os.getpid())),
            "environment": dict(os.environ),
            "sockets": listening(),
            "connections": [connected(self.server), connected(self.hidden)],
            "host name": socket.gethostname(),
            "core pattern": Path("/proc/sys/kernel/core_pattern").read_text(),
            "open files": len(os.listdir("/proc/self/fd")),
        }

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


def listening() -> set[str]:
    """Inodes of this process's own sockets that listen; other processes of the machine come and go."""
    own = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            own.add(os.readlink(f"/proc/self/fd/{entry}"))
        except FileNotFoundError:
            continue
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    inodes = {f"socket:[{line.split()[9]}]" for line in lines if line.split()[3] == "0A"}
    return inodes & own


def connected(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("WHET_HOST_SECRET", secrets.token_hex(16))
    made = Host(tmp_path)
    yield made
    made.close()


def contained(host: Host, command: list[str]) -> ExecResult:
    """Run it in a sandbox of its own, and see that nothing outside has changed."""

    async def run() -> tuple[ExecResult, dict[str, object], dict[str, object]]:
        await BubblewrapBackend().check()
        before = host.state()
        async with await BubblewrapBackend().create(SPEC) as sandbox:
            result = await sandbox.exec(command, cwd="/home/user")
        return result, before, host.state()

    result, before, after = asyncio.run(run())
    assert "ESCAPED" not in result.stdout, result.stdout
    assert host.secret.read_text() not in result.stdout
    assert after == before
    return result


@pytest.mark.parametrize("name", SHELL)
def test_a_shell_program_is_contained(host: Host, name: str) -> None:
    contained(host, ["sh", "-c", host.fill(SHELL[name])])


@pytest.mark.parametrize("name", PYTHON)
def test_a_python_program_is_contained(host: Host, name: str) -> None:
    result = contained(host, ["python3", "-c", host.fill(PYTHON[name])])
    assert "SyntaxError" not in result.stderr
    assert "NameError" not in result.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of these system calls are those of x86-64")
@pytest.mark.parametrize("name", SYSTEM_CALLS)
def test_a_system_call_is_refused(host: Host, name: str) -> None:
    result = contained(host, ["python3", "-c", SYSTEM_CALLS[name]])
    assert result.stdout.strip() in {"1", "38"}, (result.stdout, result.stderr)  # EPERM, ENOSYS: the filter's answers


def test_the_same_programs_would_notice_an_escape(host: Host) -> None:
    """On the host, without a sandbox, they report one: the tests above can fail."""
    for name in ("reads a file of the host", "finds a process of the host", "lists the host's temporary folder"):
        done = subprocess.run(["sh", "-c", host.fill(SHELL[name])], capture_output=True, text=True, check=False)
        assert "ESCAPED" in done.stdout, name
    program = host.fill(PYTHON["reaches a server on the host's loopback"])
    assert "ESCAPED" in subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
