"""Plain processes of this user in a folder of their own. NOT A BOUNDARY: the code can do everything that you can.

For code that you wrote or read, where nothing better runs. It is never chosen automatically; choosing it by name is the
consent, and a warning says what it is. Of the limits, time, output, processor time and file size hold; memory holds
for each process on Linux; the number of processes, the disk and the network are not limited at all. When whet is
killed, commands end with it on Linux; what they started themselves may run on.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

from whet.errors import ConfigError
from whet.sandboxes import processes
from whet.sandboxes.base import SandboxBase
from whet.sandboxes.protocol import Process, SandboxSpec
from whet.system.children import began, kill_group

_log = logging.getLogger(__name__)
PREFIX = "whet-subprocess-"
_KEPT = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT")
WARNING = "the subprocess sandbox is no boundary: code in it can do everything this user can. For trusted code only."
# Run by the interpreter between fork and the command: limits of each process, then the command itself.
_LIMITED = """
import os, resource, sys
def limit(kind, value):
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, hard))
limit(resource.RLIMIT_CPU, int(sys.argv[1]))
limit(resource.RLIMIT_FSIZE, int(sys.argv[2]))
import signal
if sys.platform == "linux":
    limit(resource.RLIMIT_DATA, int(sys.argv[3]))
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the process that runs whet
for name in (signal.SIGXFSZ, signal.SIGPIPE):
    signal.signal(name, signal.SIG_DFL)
try:
    os.execvp(sys.argv[4], sys.argv[4:])
except OSError as error:
    print(f"{sys.argv[4]}: {error.strerror}", file=sys.stderr)
    sys.exit(127)
"""


class SubprocessBackend:
    """Runs trusted code."""

    name = "subprocess"

    async def check(self) -> None:
        """Always there; says what it is not."""
        _log.warning(WARNING)

    async def create(self, spec: SandboxSpec) -> SubprocessSandbox:
        """A folder and nothing more."""
        spec.refuse_network("by the subprocess backend", "which is no boundary: code in it reaches whatever you reach")
        for inside, folder in spec.read_only.items():
            if inside != folder:
                raise ConfigError(
                    f"the subprocess sandbox shows every folder where it is on the host, so {folder} cannot be shown "
                    f"as {inside}. Use the bubblewrap or the docker backend."
                )
        if spec.writable:
            raise ConfigError(
                f"the subprocess sandbox shows the host's folders, so writable={list(spec.writable)!r} would be the "
                "host's own. Use the bubblewrap or the docker backend."
            )
        return SubprocessSandbox(spec, await asyncio.to_thread(_new_folder))


def _new_folder() -> Path:
    """A folder that is named after this process. Those of processes that were killed are removed."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        pid = left.name.removeprefix(PREFIX).split("-")[0]
        with contextlib.suppress(FileNotFoundError):  # another process may be sweeping too
            if pid.isdigit() and began(int(pid)) is None and left.lstat().st_uid == os.getuid():
                shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))


class SubprocessSandbox(SandboxBase):
    """A folder in which commands run. A command that starts a session of its own escapes its end."""

    def __init__(self, spec: SandboxSpec, folder: Path) -> None:
        super().__init__("subprocess", spec)
        self.folder = folder
        self.home = str(folder)
        self._names = itertools.count()
        self._groups: dict[int, int] = {}

    async def _start(self, argv: list[str], cwd: str | None, env: dict[str, str]) -> Process:
        base = {name: os.environ[name] for name in _KEPT if name in os.environ}
        base |= {"HOME": str(self.folder), "TMPDIR": str(self.folder), **env}
        limits = (self.spec.cpu_time_s, self.spec.file_bytes, self.spec.memory_bytes)
        program = [sys.executable, "-I", "-S", "-c", _LIMITED, *map(str, limits), *argv]
        process = await processes.start(program, cwd=self.folder / (cwd or "."), env=base)
        self._groups[next(self._names)] = process.pid
        return processes.HostProcess(process)

    def abandon(self) -> None:
        self._kill_all()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill_all(self) -> None:
        for group in self._groups.values():
            kill_group(group)

    async def _close(self) -> None:
        self._kill_all()
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
