"""What bubblewrap is told: the file system, namespaces and environment of a sandbox, as arguments. Pure.

The order matters to bubblewrap: mounts are made one after the other. Everything the code can write to lies on a tmpfs
of limited size; the root and /dev are read-only once they are furnished.
"""

from __future__ import annotations

from dataclasses import dataclass

from whet.sandboxes.network import PROXY_HOST, PROXY_PORT, AllowList
from whet.sandboxes.protocol import SandboxSpec

HOME = "/home/user"
GUEST = "/run/whet/guest.py"
UID = 1000
SHM_BYTES = 64 << 20
RESERVED_BYTES = 128 << 20  # of a sandbox's memory, that files cannot take
PATH = "/usr/local/bin:/usr/bin:/bin"

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
class Layout:
    """What of the host is shown, read-only."""

    links: tuple[tuple[str, str], ...]  # (target, path) such as ("usr/bin", "/bin")
    directories: tuple[str, ...]  # bound where they are, such as /usr
    python: str  # the interpreter that runs the guest, as seen from inside


@dataclass(frozen=True, slots=True)
class Features:
    """What the machine can do for a sandbox."""

    disable_userns: bool
    memory_is_grouped: bool


@dataclass(frozen=True, slots=True)
class Descriptors:
    """File descriptors that bubblewrap and the guest inherit."""

    info: int
    block: int
    seccomp: int | None
    channel: int
    files: dict[str, int]  # path inside: descriptor with its content


def room(spec: SandboxSpec, memory_is_grouped: bool) -> tuple[int, int]:
    """Bytes of the disk and of shared memory.

    Both count as memory where a control group does. Files do not go away when their writer is killed, so full ones must
    leave room for process 1: otherwise code could end its sandbox and pass its own failure off as the host's.
    """
    if not memory_is_grouped:
        return spec.disk_bytes, SHM_BYTES
    shared = min(SHM_BYTES, spec.memory_bytes // 8)
    return min(spec.disk_bytes, max(spec.memory_bytes // 2, spec.memory_bytes - shared - RESERVED_BYTES)), shared


def arguments(spec: SandboxSpec, layout: Layout, fds: Descriptors, host: Features) -> list[str]:
    """Everything after `bwrap`."""
    disk, shared = room(spec, host.memory_is_grouped)
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
    for directory in layout.directories:
        args += ["--ro-bind", directory, directory]
    for target, path in layout.links:
        args += ["--symlink", target, path]
    args += [
        "--perms",
        "0755",
        "--dir",
        "/etc",
        "--perms",
        "0755",
        "--dir",
        "/run",
        "--perms",
        "0755",
        "--dir",
        "/run/whet",
    ]
    for inside, folder in spec.read_only.items():
        args += ["--ro-bind", folder, inside]
    for path in SYSTEM_FILES:
        args += ["--ro-bind-try", path, path]
    for path, fd in fds.files.items():
        args += ["--perms", "0444", "--ro-bind-data", str(fd), path]
    args += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--size", str(shared), "--tmpfs", "/dev/shm"]
    # One tmpfs under home and /tmp: together they are the disk.
    args += ["--perms", "0755", "--size", str(disk), "--tmpfs", "/home"]
    args += ["--perms", "0700", "--dir", HOME, "--perms", "1777", "--dir", "/home/tmp"]
    args += ["--symlink", "home/tmp", "/tmp", "--dir", "/var", "--symlink", "../home/tmp", "/var/tmp"]
    args += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", HOME]
    args += ["--info-fd", str(fds.info), "--block-fd", str(fds.block)]
    args += ["--seccomp", str(fds.seccomp)] if fds.seccomp is not None else []
    proxy = [str(PROXY_PORT)] if spec.has_network else []
    return [*args, "--", layout.python, "-I", "-S", "-B", GUEST, str(fds.channel), *proxy]


def environment(layout: Layout, extra: dict[str, str]) -> dict[str, str]:
    """What a command finds in its environment: nothing of the host's."""
    own_bin = layout.python.rpartition("/")[0]
    path = PATH if own_bin in PATH.split(":") else f"{own_bin}:{PATH}"
    base = {"PATH": path, "HOME": HOME, "USER": "user", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "TERM": "dumb"}
    return {**base, **extra}


def proxy_variables(allowed: AllowList) -> dict[str, str]:
    """What most programs read to find a proxy. Servers inside the sandbox itself are reached without it."""
    url = f"http://{PROXY_HOST}:{PROXY_PORT}"
    named = {rule.host for rule in allowed.rules}
    inside = ",".join(host for host in ("localhost", "127.0.0.1", "::1") if host not in named)
    variables = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": inside}
    return {**variables, **{name.lower(): value for name, value in variables.items()}, "NODE_USE_ENV_PROXY": "1"}


def rlimits(spec: SandboxSpec, memory_is_grouped: bool) -> str:
    """Limits of each process, in the guest's order: processor seconds, file size, processes, data, open files.

    Where a control group counts the memory of the whole sandbox, that of one process only has to be finite.
    """
    data = 2 * spec.memory_bytes if memory_is_grouped else spec.memory_bytes
    return f"{spec.cpu_time_s},{spec.file_bytes},{spec.processes},{data},1024"
