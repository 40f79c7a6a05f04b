"""What this machine offers to bubblewrap: the program, its features, a Python for the guest, and whether it all works.

Asked once per process. As root, sandboxes run as a user of their own that owns nothing, so that even the files that a
sandbox may see are seen with a stranger's rights.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from whet.errors import SandboxUnavailableError
from whet.sandboxes import cgroups, seccomp
from whet.sandboxes.bubblewrap_command import Layout
from whet.sandboxes.install import install_command

NOBODY = 65533  # not 65534, which other programs run as
PROBE_S = 30.0


@dataclass(frozen=True, slots=True)
class Host:
    """How to start bubblewrap here."""

    command: tuple[str, ...]
    layout: Layout
    disable_userns: bool
    seccomp: bytes
    controllers: tuple[str, ...]


@functools.cache
def host() -> Host:
    """Raises SandboxUnavailableError, with what to do, where bubblewrap cannot isolate anything."""
    program = shutil.which("bwrap")
    if sys.platform != "linux":
        raise SandboxUnavailableError(
            f"the bubblewrap sandbox needs Linux and this is {sys.platform}. Use the docker backend."
        )
    if program is None:
        raise SandboxUnavailableError(
            f"the bubblewrap sandbox needs the program bwrap. Install it with: {install_command('bubblewrap')}"
        )
    filter_ = seccomp.filter_for(os.uname().machine)
    if filter_ is None:
        raise SandboxUnavailableError(
            f"the bubblewrap sandbox has no seccomp filter for {os.uname().machine}. Use the docker backend."
        )
    command: tuple[str, ...] = (program,)
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise SandboxUnavailableError(
                "the bubblewrap sandbox gives up root through the program setpriv. "
                f"Install it with: {install_command('util-linux')}"
            )
        drop = (f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all")
        command = (setpriv, *drop, program)
    features = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=PROBE_S).stdout
    _require(features)
    layout = _layout(command)
    return Host(command, layout, "--disable-userns" in features, filter_, cgroups.available())


def _require(features: str) -> None:
    missing = [option for option in ("--size", "--perms", "--clearenv", "--as-pid-1") if option not in features]
    if missing:
        raise SandboxUnavailableError(
            f"the bubblewrap sandbox needs bwrap 0.6 or newer; this one has no {missing[0]}. "
            f"Update it with: {install_command('bubblewrap')}"
        )


def _layout(command: tuple[str, ...]) -> Layout:
    """The first Python that starts inside; an interpreter in somebody's home is out of a stranger's reach."""
    links, directories = _system()
    own = Path(sys.base_prefix)
    candidates = [
        (str(own / "bin" / f"python{sys.version_info.major}"), (str(own),) if own != Path("/usr") else ()),
        ("/usr/local/bin/python3", ()),
        ("/usr/bin/python3", ()),
    ]
    said = "no Python was found"
    for python, more in candidates:
        if not os.path.exists(python):
            continue
        layout = Layout(links, (*directories, *(path for path in more if not path.startswith("/usr/"))), python)
        problem = _tried(command, layout)
        if problem is None:
            return layout
        said = problem
    raise SandboxUnavailableError(f"the bubblewrap sandbox does not start here: {said.strip()}. {_advice(said)}")


def _system() -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """/bin and its kin are links into /usr on most systems and directories on some."""
    links, directories = [], ["/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            links.append((os.readlink(path), str(path)))
        elif path.is_dir():
            directories.append(str(path))
    return tuple(links), tuple(directories)


def _tried(command: tuple[str, ...], layout: Layout) -> str | None:
    """None, or what bubblewrap said when it was asked to start this Python with the namespaces that we need."""
    args = ["--unshare-all", "--uid", "1000", "--gid", "1000", "--as-pid-1", "--clearenv", "--die-with-parent"]
    for directory in layout.directories:
        args += ["--ro-bind", directory, directory]
    for target, path in layout.links:
        args += ["--symlink", target, path]
    args += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--proc", "/proc", "--dev", "/dev", "--"]
    probe = [layout.python, "-I", "-S", "-c", "import sys, ctypes, resource; sys.exit(sys.version_info < (3, 9))"]
    done = subprocess.run(
        [*command, *args, *probe], capture_output=True, text=True, timeout=PROBE_S, stdin=subprocess.DEVNULL, cwd="/"
    )
    return None if done.returncode == 0 else done.stderr or f"{layout.python} is older than Python 3.9"


def _advice(said: str) -> str:
    if "Python" in said:
        return f"Install a Python that every user may run: {install_command('python3')}"
    return (
        "The kernel has to allow user namespaces: sysctl -w user.max_user_namespaces=10000 "
        "kernel.apparmor_restrict_unprivileged_userns=0 (the second on Ubuntu only), or use the docker backend."
    )
