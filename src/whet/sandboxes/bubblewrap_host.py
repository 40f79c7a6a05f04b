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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from whet.errors import SandboxUnavailableError
from whet.sandboxes import cgroups, seccomp
from whet.sandboxes.bubblewrap_command import Layout
from whet.sandboxes.bubblewrap_program import Program, Start, programs, start_of
from whet.sandboxes.install import install_command
from whet.sandboxes.obstacles import advice

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
    program: str = "bwrap"  # as this process's own user may start it
    fds: tuple[int, ...] = ()  # that the command inherits
    env: Mapping[str, str] = field(default_factory=dict)  # of the command


@functools.cache
def host() -> Host:
    """Raises SandboxUnavailableError, with what to do, where bubblewrap cannot isolate anything."""
    if sys.platform != "linux":
        raise SandboxUnavailableError(
            f"the bubblewrap sandbox needs Linux and this is {sys.platform}. Use the docker backend."
        )
    found = programs()
    filter_ = seccomp.filter_for(os.uname().machine)
    if filter_ is None:
        raise SandboxUnavailableError(
            f"the bubblewrap sandbox has no seccomp filter for {os.uname().machine}. Use the docker backend."
        )
    before: tuple[str, ...] = ()
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise SandboxUnavailableError(
                "the bubblewrap sandbox gives up root through the program setpriv. "
                f"Install it with: {install_command('util-linux')}"
            )
        before = (setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all")
    refused: dict[str, str] = {}
    for program in found:
        start = start_of(program, before)
        layout = _layout(program, start)
        if isinstance(layout, Layout):
            env = dict(start.env)
            controllers = cgroups.available()
            return Host(
                start.command, layout, program.disables_userns, filter_, controllers, program.path, start.fds, env
            )
        refused.setdefault(layout.strip(), program.path)
    said = "; ".join(f"{path}: {words}" for words, path in refused.items())
    raise SandboxUnavailableError(f"the bubblewrap sandbox does not start here. {said}. {advice(said, found[0].path)}")


def _layout(program: Program, start: Start) -> Layout | str:
    """The first Python that starts inside, or what was said; an interpreter in a home is out of a stranger's reach."""
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
        problem = _tried(program, start, layout)
        if problem is None:
            return layout
        said = problem
    return said


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


def _tried(program: Program, start: Start, layout: Layout) -> str | None:
    """None, or what bubblewrap said when it was asked to start this Python with the namespaces that we need."""
    args = ["--unshare-all", "--uid", "1000", "--gid", "1000", "--as-pid-1", "--clearenv", "--die-with-parent"]
    args += ["--unshare-user", "--disable-userns"] if program.disables_userns else []
    for directory in layout.directories:
        args += ["--ro-bind", directory, directory]
    for target, path in layout.links:
        args += ["--symlink", target, path]
    args += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--proc", "/proc", "--dev", "/dev", "--"]
    probe = [layout.python, "-I", "-S", "-c", "import sys, ctypes, resource; sys.exit(sys.version_info < (3, 9))"]
    done = subprocess.run(
        [*start.command, *args, *probe],
        capture_output=True,
        text=True,
        timeout=PROBE_S,
        stdin=subprocess.DEVNULL,
        cwd="/",
        env=dict(start.env),
        pass_fds=start.fds,
    )
    return None if done.returncode == 0 else done.stderr or f"{layout.python} is older than Python 3.9"
