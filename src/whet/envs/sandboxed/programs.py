"""Programs that code in a sandbox needs, such as node or gcc: found, shown where they are not, missed in one line.

The bubblewrap sandbox shows /usr. A program that is elsewhere (an interpreter below a user's home) is shown as a
single file of its own: its folder may hold what a model should not see.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from whet.envs.sandboxed.request import WITHOUT_IMAGES
from whet.errors import SandboxUnavailableError
from whet.sandboxes.bubblewrap import command as bubblewrap_command
from whet.sandboxes.bubblewrap import host as bubblewrap_host
from whet.sandboxes.protocol import Sandbox
from whet.sandboxes.registry import install_command

INSIDE = "/opt/whet-programs"
_SHOWN = ("/usr/local/bin", "/usr/bin", "/bin")
_PACKAGES = {"node": "nodejs", "g++": "g++", "python3": "python3", "cc": "gcc", "javac": "default-jdk", "go": "golang"}
_MISSING = 'for program; do command -v "$program" >/dev/null || echo "$program"; done'


def to_be_shown(programs: Sequence[str], *, own_system: bool = False) -> dict[str, str]:
    """Path inside: file of the host, for the programs that this host has outside of what a sandbox sees anyway.

    One with a system of its own, such as a container, sees none of them.
    """
    shown = {}
    for program in programs:
        if own_system or shutil.which(program, path=":".join(_SHOWN)) is None:
            executable = shutil.which(program)
            if executable is not None:
                shown[f"{INSIDE}/{program}"] = str(Path(executable).resolve())
    return shown


def path_with_shown(path: str | None) -> str:
    """The PATH of commands, and behind it these programs; None is the one that the bubblewrap sandbox gives."""
    usual = bubblewrap_command.environment(bubblewrap_host.host().layout, {})["PATH"]
    return f"{path or usual}:{INSIDE}"


async def check(sandbox: Sandbox, programs: Sequence[str], backend: str) -> None:
    """Raise SandboxUnavailableError, with the command that installs it, for the first program that is not there."""
    result = await sandbox.exec(["sh", "-c", _MISSING, "sh", *programs])
    missing = result.stdout.split()
    if not missing:
        return
    program = missing[0]
    if backend not in WITHOUT_IMAGES:
        image = sandbox.spec.image or "used by default"
        raise SandboxUnavailableError(f"the image {image} has no program {program}; name one that has: docker_image.")
    raise SandboxUnavailableError(f"code in the sandbox {missing_program(program)}")


def missing_program(program: str) -> str:
    """What to do about a program that this machine lacks."""
    package = _PACKAGES.get(program, program)
    return f"needs the program {program}. Install it with: {install_command(package)}"
