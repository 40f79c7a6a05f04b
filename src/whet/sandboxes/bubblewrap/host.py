"""What this machine offers to bubblewrap: the program, its features, a Python for the guest, and whether it all works.

Checked once per process. As root, sandboxes run as a user of their own that owns nothing, so that even the files that a
sandbox may see are seen with a stranger's rights.
"""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from whet.errors import SandboxUnavailableError
from whet.sandboxes.bubblewrap import cgroups, seccomp
from whet.sandboxes.bubblewrap.launch import DISK, TERMINALS, Launcher, launcher
from whet.sandboxes.bubblewrap.layout import Layout, layouts
from whet.sandboxes.bubblewrap.program import Program, Start, programs, start_of
from whet.sandboxes.protocol import MIB
from whet.sandboxes.registry import install_command

_log = logging.getLogger(__name__)
PROBE_S = 30.0
MOST_OPEN = 65536  # descriptors of this process


@dataclass(frozen=True, slots=True)
class Host:
    """How to start bubblewrap here."""

    command: tuple[str, ...]
    launcher: Launcher
    layout: Layout
    disable_userns: bool
    seccomp: bytes
    controllers: tuple[str, ...]
    program: str = "bwrap"  # as this process's own user may start it
    fds: tuple[int, ...] = ()  # that the command inherits
    env: Mapping[str, str] = field(default_factory=dict)  # of the command

    @property
    def memory_is_grouped(self) -> bool:
        """Whether a control group counts the memory of a whole sandbox."""
        return "memory" in self.controllers


@functools.cache
def host() -> Host:
    """Raises SandboxUnavailableError, with what to do, where bubblewrap cannot isolate anything."""
    if sys.platform != "linux":
        raise SandboxUnavailableError(
            f"the bubblewrap sandbox needs Linux and this is {sys.platform}. Use the docker backend."
        )
    available = programs()
    raise_open_files()
    filter_ = seccomp.filter_for(os.uname().machine)
    if filter_ is None:
        raise SandboxUnavailableError(
            f"the bubblewrap sandbox has no seccomp filter for {os.uname().machine}. Use the docker backend."
        )
    start = launcher()
    if os.geteuid() == 0 and start.setpriv is None:
        raise SandboxUnavailableError(
            "the bubblewrap sandbox gives up root through the program setpriv. "
            f"Install it with: {install_command('util-linux')}"
        )
    refused: dict[str, str] = {}
    for way in start.ways():
        for program in available:
            execution = start_of(program, way.changes_user)
            layout = _layout(way, program, execution)
            if isinstance(layout, Layout):
                controllers = cgroups.available()
                _say(way, controllers)
                return Host(
                    execution.command,
                    way,
                    layout,
                    program.disables_userns,
                    filter_,
                    controllers,
                    program.path,
                    execution.fds,
                    environment(execution),
                )
            refused.setdefault(layout.strip(), program.path)
    said = "; ".join(f"{path}: {words}" for words, path in refused.items())
    raise SandboxUnavailableError(
        f"the bubblewrap sandbox does not start here. {said}. {advice(said, available[0].path)}"
    )


def raise_open_files() -> None:
    """The kernel passes no descriptors while more than this are in flight, over all of a user's processes.

    Code in a sandbox may have as many on their way as it may have open, so this process may have more.
    """
    import resource  # not on every system, and this file is imported on all of them

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_OPEN if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def environment(execution: Start) -> dict[str, str]:
    """Of what runs before bubblewrap, which passes none of it on."""
    return {"PATH": os.environ.get("PATH", os.defpath), **dict(execution.env)}


def _say(way: Launcher, controllers: tuple[str, ...]) -> None:
    """What is not isolated here: a user learns it where a sandbox is first used."""
    shared = way.shared()
    if "memory" not in controllers:
        shared.append(
            "have a limit on the memory of each process and none on that of all together, because whet may not make "
            "control groups: run it as root or with systemd-run --user --scope"
        )
    if shared:
        _log.warning("sandboxes on this machine are isolated in part only. They %s.", "; they ".join(shared))


def _layout(way: Launcher, program: Program, execution: Start) -> Layout | str:
    """The first Python that starts inside, or what was said; another user cannot reach one in a home."""
    said = "no Python was found"
    for layout in layouts():
        problem = _tried(way, program, execution, layout)
        if problem is None:
            return layout
        said = problem
    return said


def _tried(way: Launcher, program: Program, execution: Start, layout: Layout) -> str | None:
    """None, or bubblewrap's error when starting this Python with the required namespaces."""
    args = ["--unshare-all", "--uid", "1000", "--gid", "1000", "--as-pid-1", "--clearenv", "--die-with-parent"]
    args += ["--unshare-user", "--disable-userns"] if program.disables_userns else []
    args += layout.arguments(with_pip=True)
    args += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--proc", "/proc", "--dev", "/dev"]
    args += ["--bind", DISK, "/home", "--dev-bind", TERMINALS, "/dev/pts"] if way.mounts else []
    probe = [layout.python, "-I", "-S", "-c", "import sys, ctypes, resource; sys.exit(sys.version_info < (3, 9))"]
    user = way.claim()
    try:
        done = subprocess.run(
            [*way.words(user, MIB, 64), *execution.command, *args, *layout.seal(), "--", *probe],
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            stdin=subprocess.DEVNULL,
            cwd="/",
            env=environment(execution),
            pass_fds=execution.fds,
        )
    finally:
        if user is not None:
            user.release()
    return None if done.returncode == 0 else done.stderr or f"{layout.python} is older than Python 3.9"


# Why bubblewrap does not start, and what has to be allowed: from its words and the settings of kernel and container.
#
# Only reads; each cause that is named was found, and where none was found all that are known are listed.

KINDS = ("user", "pid", "net", "ipc", "uts", "mnt", "cgroup")
ALLOWED = 10000


def advice(said: str, program: str, root: Path = Path("/")) -> str:
    """What to do where `program` gave up with the words `said`. `root` is where the system's files begin."""
    if "Python" in said:
        return f"Install a Python that every user may run: {install_command('python3')}"
    causes = [*_of_the_kernel(program, root), *_of_the_container(said, root)]
    if causes:
        return f"{' '.join(causes)} Or use the docker backend."
    return (
        "The kernel has to allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 (Debian), "
        f"user.max_user_namespaces={ALLOWED}, kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); and a "
        "container --security-opt seccomp=unconfined. Or use the docker backend."
    )


def _of_the_kernel(program: str, root: Path) -> list[str]:
    settings = root / "proc/sys"
    if (root / "proc/self").exists() and not (root / "proc/self/ns/user").is_symlink():
        return ["This kernel has no user namespaces (CONFIG_USER_NS is off): use another one."]
    causes = []
    if _read(settings / "kernel/unprivileged_userns_clone") == "0":
        causes.append(
            "The kernel allows user namespaces to root alone: sudo sysctl -w kernel.unprivileged_userns_clone=1."
        )
    none = [f"user.max_{kind}_namespaces={ALLOWED}" for kind in KINDS if _none_allowed(settings, kind)]
    if none:
        causes.append(f"The kernel allows no namespaces of some kinds: sudo sysctl -w {' '.join(none)}.")
    if _read(settings / "kernel/apparmor_restrict_unprivileged_userns") == "1":
        causes.append(
            "AppArmor takes the rights in user namespaces from programs without a profile (Ubuntu's default): sudo "
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or a profile with 'userns,' for "
            f"{program} (man apparmor.d)."
        )
    return causes


def _of_the_container(said: str, root: Path) -> list[str]:
    if "proc" in said and ("mount" in said or "Operation not permitted" in said):
        return [
            "Parts of /proc are covered here, as in a container, and the kernel then allows no second /proc: start the "
            "container with --security-opt systempaths=unconfined (podman: unmask=ALL; Kubernetes: procMount: "
            "Unmasked)."
        ]
    causes = []
    if "Seccomp:\t2" in (_read(root / "proc/self/status") or ""):
        causes.append(
            "A seccomp filter is over this process, as containers have one: allow user namespaces with --security-opt "
            "seccomp=unconfined (Kubernetes: seccompProfile: type: Unconfined)."
        )
    profile = _read(root / "proc/self/attr/current") or ""
    if profile.endswith("(enforce)"):
        causes.append(
            f"The AppArmor profile {profile.split()[0]} confines this process: a container needs --security-opt "
            "apparmor=unconfined."
        )
    return causes


def _none_allowed(settings: Path, kind: str) -> bool:
    return _read(settings / f"user/max_{kind}_namespaces") == "0"


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
