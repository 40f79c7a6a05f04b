"""`hostile.py DATA NAME...`: runs that attack their machine, one by one, on a service's folder that has a database.

Prints a JSON object: by name, how the run ended, what it printed, and what it changed outside of its folder. An attack
prints BREACH where it has succeeded; each is bounded, so that one that succeeds does no harm.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from whet.service.runner.isolation import python_folders
from whet.service.storage.tables import RunRow
from whet.system import untrusted

MIB = 1 << 20
CANARY = "canary-of-the-runner"
VICTIM, LEAVES = "6543210", "7654321"  # seconds of the process that attacks would end, and of one that one leaves
PRELUDE = r"""
import ctypes, errno, json, mmap, os, resource, signal, socket, stat, struct, subprocess, sys, threading, time
c = json.loads(sys.argv[1])
c |= {name: c[name][::-1] for name in ("canary", "victim_words", "leaves")}  # the command line shall not have them
libc = ctypes.CDLL(None, use_errno=True)
def breach(what):
    print("BREACH", what, flush=True)
def held(what, function, *arguments, **more):
    try:
        found = function(*arguments, **more)
    except (OSError, ValueError) as error:
        print(what, type(error).__name__, flush=True)
    else:
        breach(f"{what}: {found!r}"[:300])
def call(what, number, *arguments, allowed=()):
    if libc.syscall(number, *arguments) != -1:
        breach(what)
    elif ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT, *allowed):
        breach(f"{what}: {os.strerror(ctypes.get_errno())}")
def proxy(text):
    with socket.create_connection(("127.0.0.1", 3128), timeout=60) as connection:
        connection.sendall(text.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        answer = connection.makefile("rb").read()
    status = answer.split(b"\r\n")[0]
    print(status.decode(), flush=True)
    if b" 200" in status or c["canary"].encode() in answer:
        breach(text)
"""
ATTACKS = {
    # Files of the service, of other runs, of the machine
    "database": 'held("read", open, c["data"] + "/hub.sqlite", "rb")',
    "key": 'held("read", open, c["data"] + "/secrets.key", "rb")',
    "other_run": 'held("list", os.listdir, c["other"]); held("write", open, c["other"] + "/mine", "w")',
    "submission": 'held("write", open, "config.toml", "w"); held("replace", os.rename, "../submission", "../mine")',
    "attempts": 'held("write", open, "../attempts/1/exit.json", "w"); held("make", os.mkdir, "../attempts/9")',
    "hard_link": 'held("link", os.link, c["data"] + "/secrets.key", "../run-key")',
    "homes": """
for path in c["hidden"]: held("look", os.stat, path)
held("read", open, "/etc/shadow"); held("write", open, "/etc/x", "w")
""",
    "system_folders": 'held("usr", open, "/usr/mine", "w"); held("root", open, "/mine", "w")',
    "proc_files": """
for name in ("sys/kernel/core_pattern", "sysrq-trigger", "sys/vm/overcommit_memory", "sys/kernel/hostname"):
    held(name, open, "/proc/" + name, "w")
held("kcore", open, "/proc/kcore", "rb")
""",
    "sys_files": """
for above, _, files in os.walk("/sys/fs/cgroup"):
    for name in files:
        if name in ("cgroup.procs", "memory.limit_in_bytes", "memory.max", "pids.max", "release_agent"):
            held(name, open, os.path.join(above, name), "w")
""",
    "devices": """
held("mknod", os.mknod, "../run/disk", 0o600 | stat.S_IFBLK, os.makedev(8, 0))
for name in ("mem", "kmsg", "sda", "vda", "loop0", "fuse"):
    held(name, open, "/dev/" + name, "rb")
""",
    "mounts": """
held("mount", lambda: subprocess.run(["mount", "-t", "tmpfs", "none", "/tmp"], check=True, capture_output=True)
     if os.getuid() == 0 else (_ for _ in ()).throw(PermissionError()))
own = 'mount -t tmpfs none /tmp; umount -l "$1"; ls "$1"/hub.sqlite "$1"/secrets.key /root && echo BREACH'
subprocess.run(["unshare", "-Urm", "sh", "-c", own, "sh", c["data"]])
""",
    # Files that mislead what reads them
    "pipe_for_a_file": 'os.makedirs("../run", exist_ok=True); os.mkfifo("../run/status.json")',
    "torn_json": """
os.makedirs("../run", exist_ok=True)
open("../run/status.json", "w").write("[" * 500_000); open("../run/metrics.jsonl", "w").write('{"step": 1e999, "a')
""",
    "links_out": """
os.rename("../run", "../before") if os.path.isdir("../run") else None
os.symlink(c["data"], "../run"); os.symlink("/", "../before/root") if os.path.isdir("../before") else None
""",
    "endless_line": 'piece = b"x" * 65536\nfor _ in range(800):\n    os.write(1, piece)',
    "escapes": r'print("\x1b]52;c;aGk=\x07\x1b[2J", "a\0b", flush=True); os.write(1, bytes(range(256)))',
    # Processes
    "other_processes": """
for name in os.listdir("/proc"):
    if name.isdigit():
        for file in ("environ", "cmdline"):
            try:
                text = open(f"/proc/{name}/{file}", "rb").read()
            except OSError:
                continue
            if c["canary"].encode() in text and int(name) != os.getpid() or c["victim_words"].encode() in text:
                breach(f"{name} {file}")
""",
    "environment": 'breach("variable") if any(c["canary"] in value for value in os.environ.values()) else None',
    "ptrace": """
for pid in (c["victim"], c["runner"]):
    if libc.ptrace(16, pid, 0, 0) == 0: breach("attached")
""",
    "signals": """
for pid in (c["victim"], c["runner"]):
    held("kill", os.kill, pid, signal.SIGKILL)
    held("killpg", os.killpg, pid, signal.SIGKILL)
""",
    "kill_all": 'signal.signal(signal.SIGTERM, signal.SIG_IGN)\nheld("kill", os.kill, -1, signal.SIGTERM)',
    "descriptors": """
for name in os.listdir("/proc/self/fd"):
    try:
        target = os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        continue
    if "sqlite" in target or "secrets" in target or "socket:" in target: breach(target)
""",
    "left_behind": 'subprocess.Popen(["setsid", "sleep", c["leaves"]])',
    # Rights
    "become_root": """
breach("is root of the machine") if os.getuid() == 0 else None
for function in (os.setuid, os.setgid): held("set", function, 0)
held("groups", os.setgroups, [0]); held("chroot", os.chroot, "/")
""",
    "setuid_file": """
import shutil
shutil.copy("/bin/sh", "../shell"); os.chmod("../shell", 0o6755)
held("chown", os.chown, "../shell", 0, 0)
found = subprocess.run(["../shell", "-p", "-c", "id -u"], capture_output=True, text=True).stdout.strip()
breach("root") if found == "0" else None
""",
    "capabilities": """
for line in open("/proc/self/status"):
    if line.startswith(("CapEff", "CapPrm", "CapBnd")) and int(line.split()[1], 16): 
        if not line.startswith("CapBnd"): breach(line)
    if line.startswith("NoNewPrivs") and line.split()[1] != "1": breach(line)
    if line.startswith("Seccomp:") and line.split()[1] != "2": breach(line)
""",
    "clock": 'held("set", time.clock_settime, time.CLOCK_REALTIME, time.time()); held("name", socket.sethostname, "x")',
    "priority": 'held("nice", os.nice, -5); held("fifo", os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))',
    "more_than_limits": """
for name in ("RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_CORE"):
    if hasattr(resource, name) and resource.getrlimit(getattr(resource, name))[1] != resource.RLIM_INFINITY:
        held(name, resource.setrlimit, getattr(resource, name), (resource.RLIM_INFINITY,) * 2)
""",
    # System calls (numbers of x86-64)
    "keyrings": 'call("keyctl", 250, 0, -3, 0); call("add_key", 248, b"user", b"x", b"y", 1, -3)',
    "kernel_facilities": """
call("bpf", 321, 0, 0, 0); call("perf", 298, 0, 0, -1, -1, 0); call("userfaultfd", 323, 0); call("io_uring", 425, 8, 0)
call("module", 175, 0, 0, 0); call("kexec", 246, 0, 0, 0, 0); call("syslog", 103, 3, 0, 0)
""",
    "machine": 'call("reboot", 169, 0, 0, 0); call("swapoff", 168, b""); call("acct", 163, 0); call("iopl", 172, 3)',
    "sockets": """
for family in (17, 40, 38, 21, 16):  # packet, vsock, alg, rds, netlink of another kind than routes
    call(f"family {family}", 41, family, 3, 12 if family == 16 else 0)
held("raw", socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
""",
    "core_dump": """
if os.fork() == 0: os.abort()
os.wait()
if any(name.startswith("core") for name in os.listdir("..")): breach("core")
""",
    # Network
    "loopback": 'held("connect", socket.create_connection, ("127.0.0.1", c["port"]), 5)',
    "squatted_port": """
for port in (c["port"], c["free"]):
    listening = socket.create_server(("127.0.0.1", port))
    listening.settimeout(0.01)
    held("accept", listening.accept)
    globals()[f"kept_{port}"] = listening
print("listening", flush=True)
""",
    "proxy_to_loopback": """
for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::ffff:127.0.0.1]", c["host"]):
    proxy(f"GET http://{host}:{c['port']}/ HTTP/1.1\\nHost: x")
    proxy(f"CONNECT {host}:{c['port']} HTTP/1.1\\nHost: x")
""",
    "proxy_to_private": """
for host in ("10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "[fe80::1]", "[fd00::1]"):
    proxy(f"GET http://{host}/ HTTP/1.1\\nHost: x")
    proxy(f"CONNECT {host}:443 HTTP/1.1\\nHost: x")
""",
    "proxy_flood": """
held_open = []
for _ in range(400):
    try:
        held_open.append(socket.create_connection(("127.0.0.1", 3128), timeout=5))
    except OSError:
        break
""",
    "abstract_socket": """
for name in c["abstract"], "\\0/tmp/.X11-unix/X0":
    one = socket.socket(socket.AF_UNIX); held("connect", one.connect, name)
""",
    "unix_socket": 'one = socket.socket(socket.AF_UNIX); held("connect", one.connect, c["data"] + "/service.sock")',
    "interfaces": """
names = [name for _, name in socket.if_nameindex()]
breach(names) if names != ["lo"] else None
own = 'ip link add x type veth peer y 2>/dev/null && ip link set y netns 1 && echo BREACH; exit 0'
subprocess.run(["unshare", "-Urn", "sh", "-c", own])
""",
}
LIMITS = {
    "memory": """
kept = []
for _ in range(32):
    one = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); kept.append(one)
    for at in range(0, 64 << 20, 4096): one[at] = 1
time.sleep(60); breach("2 GiB")
""",
    "memory_of_children": """
for _ in range(8):
    if os.fork() == 0:
        one = bytearray(os.urandom(1 << 20) * 256); time.sleep(120); os._exit(0)
time.sleep(60); breach("2 GiB")
""",
    "shared_memory": """
one = mmap.mmap(-1, 2 << 30)
for at in range(0, 2 << 30, 4096): one[at] = 1
time.sleep(60); breach("2 GiB")
""",
    "processes": """
import atexit
for count in range(1500):
    try:
        if os.fork() == 0: time.sleep(120); os._exit(0)
    except OSError:
        time.sleep(120)
time.sleep(60); breach("1500")
""",
    "threads": """
threading.stack_size(65536)
for count in range(1500):
    try:
        threading.Thread(target=time.sleep, args=(120,), daemon=True).start()
    except RuntimeError:
        time.sleep(120)
time.sleep(60); breach("1500"); os._exit(0)
""",
    "disk": """
with open("../run.bin", "wb") as file:
    for _ in range(128):
        file.write(os.urandom(1 << 20) * 8); file.flush()
time.sleep(60); breach("1 GiB")
""",
    "disk_in_many_files": """
piece = os.urandom(1 << 20) * 8
for number in range(128):
    open(f"../part-{number}", "wb").write(piece)
time.sleep(60); breach("1 GiB")
""",
    "files": """
os.mkdir("../many")
for number in range(20_000): open(f"../many/{number}", "w").close()
time.sleep(60); breach("20,000")
""",
    "deep_folders": """
os.chdir("..")
for _ in range(1500): os.mkdir("d"); os.chdir("d")
time.sleep(60); breach("1,500 levels")
""",
}
REASONS = {
    **dict.fromkeys(("memory", "memory_of_children", "shared_memory"), "memory limit: "),
    **dict.fromkeys(("processes", "threads"), "process limit: "),
    **dict.fromkeys(("disk", "disk_in_many_files", "files", "deep_folders"), "disk limit: "),
}


def load(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Machine:
    """What attacks look for: a server on loopback, sockets, a process with a secret, another run, the service's key."""

    def __init__(self, data: Path) -> None:
        self.connections = 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.free = socket.create_server(("127.0.0.1", 0))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0whet-hostile-{os.getpid()}")
        self.abstract.listen()
        self.unix = socket.socket(socket.AF_UNIX)
        os.chdir(data)
        self.unix.bind("service.sock")
        self.unix.listen()
        environment = {**os.environ, "SECRET": CANARY}
        self.victim = subprocess.Popen(["/bin/sleep", VICTIM], env=environment, start_new_session=True)
        (data / "secrets.key").write_text(CANARY)
        self.other = data / "runs" / "0123456789abcdef"
        self.other.mkdir(parents=True)
        (self.other / "config.toml").write_text(CANARY)
        port = self.free.getsockname()[1]
        self.free.close()
        self.context = {
            "data": str(data),
            "other": str(self.other),
            "port": self.server.getsockname()[1],
            "free": port,
            "host": socket.gethostname(),
            "abstract": f"\0whet-hostile-{os.getpid()}",
            "victim": self.victim.pid,
            "victim_words": VICTIM[::-1],
            "runner": os.getpid(),
            "canary": CANARY[::-1],
            "leaves": LEAVES[::-1],
            "hidden": [
                str(path)
                for path in Path.home().iterdir()
                if not any(shown.is_relative_to(path) for shown in python_folders())
            ],
        }
        self.before = self._outside(data)
        self.data = data
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.server.accept()[0].close()
                self.connections += 1

    def _outside(self, data: Path) -> dict[str, Any]:
        """Owners, rights and sizes of what no run may change."""
        paths = [data, data / "secrets.key", self.other, self.other / "config.toml", data / "runs"]
        return {str(path): tuple(path.lstat()[:1] + path.lstat()[4:6]) for path in paths}

    def harmed(self) -> list[str]:
        found = [] if self.victim.poll() is None else ["the victim was killed"]
        found += [path for path, was in self._outside(self.data).items() if was != self.before[path]]
        found += [f"{self.connections} connections"] if self.connections else []
        left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if LEAVES.encode() in _read(path)]
        return found + [f"left behind: {path}" for path in left]

    def close(self) -> None:
        self.victim.kill()
        self.victim.wait()
        for one in (self.server, self.abstract, self.unix):
            one.close()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def main(data: Path, names: list[str]) -> dict[str, Any]:
    from whet.hub.storage.database import Database
    from whet.service.runner.isolation import choose

    here = Path(__file__).parent
    working, queued = load(here / "working.py", "working"), load(here.parent / "queued.py", "service_queued")
    machine, outcomes = Machine(data), {}
    found = working.Working(queued.Queued(Database(f"sqlite:///{data / 'hub.sqlite'}")), data, choose("auto"))
    current = ""

    def command(python: Path, job: Any, folder: Any) -> list[str]:
        attack = {**ATTACKS, **LIMITS}[current]
        return [str(python), "-I", "-c", PRELUDE + attack, json.dumps(machine.context)]

    os.environ["SECRET_OF_THE_RUNNER"] = CANARY
    try:
        runner = found.runner(command)
        for current in names:
            run = found.queue.submit(memory=64 * MIB)
            row: RunRow = found.end(runner, run)
            said = found.attempt(run).output.read_text(errors="replace")
            size = sum(path.lstat().st_size for path in (found.folder(run).path / "attempts").rglob("*"))
            outcomes[current] = {
                "state": row.state,
                "reason": row.reason,
                "said": said[-2000:],
                "breach": "BREACH" in said,
                "harmed": machine.harmed(),
                "log_bytes": size,
                "used": untrusted.measure(found.folder(run).path, 1 << 30),
            }
            untrusted.remove(data / "runs", run)
    finally:
        found.close()
        machine.close()
    return outcomes


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2:] or [*ATTACKS, *LIMITS])))
