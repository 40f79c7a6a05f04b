"""The arguments of bubblewrap: the file system, namespaces and environment of a sandbox. Pure.

The order matters: bubblewrap mounts one after the other. Everything the code can write to is on a tmpfs of limited
size; the root and /dev are remounted read-only at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from whet.sandboxes.bubblewrap.launch import DISK, TERMINALS
from whet.sandboxes.bubblewrap.layout import Layout
from whet.sandboxes.network.allow_list import PROXY_PORT
from whet.sandboxes.protocol import HOME, SandboxSpec

if TYPE_CHECKING:
    from whet.sandboxes.bubblewrap.host import Host

GUEST = "/run/whet/guest.py"
UID = 1000
RESERVED_BYTES = 128 << 20  # of a sandbox's memory, that files cannot take
FILE_BYTES = 2048  # of kernel memory for an inode, its name and what it links to
FEWEST_FILES = 4096
SHARED_BYTES = 16 << 20  # of shared memory where it is not part of the disk
PATH = "/usr/local/bin:/usr/bin:/bin"
OPEN_FILES = 1024
_COUNTED = ("RLIMIT_SIGPENDING", "RLIMIT_MSGQUEUE", "RLIMIT_MEMLOCK")

# Without these, programs do not find their libraries, certificates or alternatives; none of them holds a secret.
SYSTEM_FILES = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
OWN_FILES = {
    "/etc/passwd": f"user:x:{UID}:{UID}:user:{HOME}:/bin/sh\n",
    "/etc/group": f"user:x:{UID}:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


@dataclass(frozen=True, slots=True)
class Descriptors:
    """File descriptors that bubblewrap and the guest inherit."""

    info: int
    block: int
    seccomp: int
    channel: int
    files: dict[str, int]  # path inside: descriptor with its content


@dataclass(frozen=True, slots=True)
class StorageLimit:
    """What the code may fill: bytes of home, /tmp and shared memory together, and how many files they may be."""

    size: int
    files: int


def room(spec: SandboxSpec, memory_is_grouped: bool) -> StorageLimit:
    """Files, and what the kernel needs for each however empty, count as memory where a control group does.

    They do not go away when their writer is killed, so they must leave room for process 1 and for a command.
    """
    files = max(FEWEST_FILES, spec.memory_bytes // 8 // FILE_BYTES)
    if not memory_is_grouped:
        return StorageLimit(spec.disk_bytes, files)
    left = spec.memory_bytes - files * FILE_BYTES - RESERVED_BYTES
    return StorageLimit(min(spec.disk_bytes, max(spec.memory_bytes // 2, left)), files)


def arguments(spec: SandboxSpec, fds: Descriptors, host: Host) -> list[str]:
    """Everything after `bwrap`."""
    args = [
        "--unshare-user",
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-uts",
        "--unshare-cgroup-try",
    ]
    args += ["--disable-userns"] if host.disable_userns else []
    args += ["--uid", str(UID), "--gid", str(UID), "--hostname", "sandbox", "--cap-drop", "ALL"]
    args += ["--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
    args += host.layout.arguments(with_pip=spec.has_network)
    for folder in ("/etc", "/run", "/run/whet"):
        args += ["--perms", "0755", "--dir", folder]
    for inside, folder in spec.read_only.items():
        args += ["--ro-bind", folder, inside]
    for path in SYSTEM_FILES:
        outside = Path(f"{host.layout.image}{path}")
        if not host.layout.image or outside.resolve().is_relative_to(host.layout.image):
            args += ["--ro-bind-try", str(outside), path]
    for path, fd in fds.files.items():
        args += ["--perms", "0444", "--ro-bind-data", str(fd), path]
    args += ["--proc", "/proc", "--dev", "/dev"]
    if host.launcher.mounts:
        args += ["--bind", f"{DISK}/shm", "/dev/shm", "--dev-bind", TERMINALS, "/dev/pts", "--bind", DISK, "/home"]
    else:
        args += ["--perms", "1777", "--size", str(SHARED_BYTES), "--tmpfs", "/dev/shm"]
        args += ["--perms", "0755", "--size", str(room(spec, host.memory_is_grouped).size), "--tmpfs", "/home"]
    args += ["--perms", "0700", "--dir", HOME, "--perms", "1777", "--dir", "/home/tmp"]
    args += ["--symlink", "home/tmp", "/tmp", "--dir", "/var", "--symlink", "../home/tmp", "/var/tmp"]
    for number, path in enumerate(spec.writable):  # on the same tmpfs as home, so that one limit covers all
        folder = f"/home/writable/{number}"
        args += ["--perms", "0700", "--dir", "/home/writable", "--perms", "0700", "--dir", folder]
        args += ["--symlink", folder, path]
    args += [*host.layout.seal(), "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", HOME]
    args += ["--info-fd", str(fds.info), "--block-fd", str(fds.block), "--seccomp", str(fds.seccomp)]
    proxy = [str(PROXY_PORT)] if spec.has_network else []
    return [*args, "--", host.layout.python, "-I", "-S", "-B", GUEST, str(fds.channel), *proxy]


def environment(layout: Layout, extra: dict[str, str]) -> dict[str, str]:
    """What a command finds in its environment: nothing of the host's."""
    own_bin = layout.python.rpartition("/")[0]
    path = PATH if own_bin in PATH.split(":") else f"{own_bin}:{PATH}"
    base = {"PATH": path, "HOME": HOME, "USER": "user", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "TERM": "dumb"}
    return {**base, **extra}


def rlimits(spec: SandboxSpec, memory_is_grouped: bool, share: int) -> str:
    """Limits of each process, in the guest's order (`guest.LIMITS`); -1 leaves what is there.

    Where a control group counts the memory of the whole sandbox, that of one process only has to be finite. What the
    kernel counts per user is cut down to one part in `share`, where the user is not the sandbox's own.
    """
    data = 2 * spec.memory_bytes if memory_is_grouped else spec.memory_bytes
    counted = [_soft(kind) // share if share > 1 else -1 for kind in _COUNTED]
    return ",".join(map(str, (spec.cpu_time_s, spec.file_bytes, spec.processes, data, OPEN_FILES, *counted)))


def _soft(kind: str) -> int:
    import resource  # not on every system, and this file is imported on all of them

    return int(resource.getrlimit(getattr(resource, kind))[0])
