"""Run a review's process, in bubblewrap by default, within limits of time, output, memory and processes.

Inside there is no network, no home and no file of the host's but the system, this Python's packages and the package
under review, all read-only. What can be written is a tmpfs that ends with the process. The process reports on a pipe;
what it prints is kept apart, up to a limit.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from whet.authoring.review.observations import EVENT, Event
from whet.errors import SandboxUnavailableError
from whet.sandboxes.bubblewrap import cgroups
from whet.system.children import family, how_it_ended, kill, start, wait_or_kill
from whet.system.files import user_cache
from whet.system.memory import memory_share, own_memory

REPORT_BYTES = 64 << 20
LINE_BYTES = 1 << 20
PRINTED_BYTES = 1 << 20
LINGER_S = 1.0  # to keep reading after its end, when a leftover process holds its streams open
SCRATCH_BYTES = 1 << 30
HOME = "/tmp/home"
PASSED_ON = ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class Ran:
    """What a process reported, and how it ended."""

    events: tuple[Event, ...]
    printed: str
    ended: str | None  # None where it ended well, else how it did not


def run(
    what: str, request: Mapping[str, Any], *, timeout_s: float, hash_seed: int, sandbox: bool, readable: Sequence[Path]
) -> Ran:
    """Run `observe.py`.

    Args:
        what: `import` or `load`.
        request: what it reads on standard input.
        timeout_s: seconds after which it is killed, with everything that it started.
        hash_seed: PYTHONHASHSEED, so that two runs differ in the order of sets.
        sandbox: whether it runs in bubblewrap.
        readable: files and folders of the host that it may read, besides Python's.

    Raises `SandboxUnavailableError` where bubblewrap is wanted and cannot run.
    """
    with contextlib.ExitStack() as stack:
        reading, writing = os.pipe()
        stream = os.fdopen(reading, "rb")
        ours = stack.enter_context(os.fdopen(writing, "wb"))
        python = [sys.executable, "-P", "-B", "-W", "ignore", "-m", "whet.authoring.review.observe", what, str(writing)]
        env = _environment(hash_seed)
        fds = [writing]
        if sandbox:
            prefix, more = stack.enter_context(_bubblewrap(env, readable))
            command, fds = [*prefix, *python], [*fds, *more]
            folder = "/"
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="whet-check-"))
            env["HOME"] = env["TMPDIR"] = folder
            command = python
        limits = ProcessLimits()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = start(limits.command(command), env=env, cwd=folder, pass_fds=fds, **pipes)
        ours.close()
        assert process.stdin is not None
        assert process.stdout is not None
        report, printed = _Report(), bytearray()
        readers = [
            _drain(stream, report.keep),
            _drain(process.stdout, lambda piece: printed.extend(piece[: PRINTED_BYTES - len(printed)])),
        ]
        sent = {**request, "path": [entry for entry in sys.path if entry]}
        limits.watch(process.pid)
        reached = None
        try:
            ended = _wait(process, process.stdin, json.dumps(sent).encode(), timeout_s)
        finally:
            reached = limits.end()
        for reader in readers:
            reader.join(LINGER_S)
    return Ran(tuple(report.events), printed.decode(errors="replace"), reached or ended or report.problem)


def _drain(stream: IO[bytes], keep: Callable[[bytes], object]) -> threading.Thread:
    """A thread that reads a stream of the process to its end, so that the process never blocks on a full pipe.

    A leftover process may hold the stream open; then the thread ends with this process.
    """

    def read() -> None:
        with stream:
            while piece := stream.readline(LINE_BYTES):
                keep(piece)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


class _Report:
    """The events of the process, until the first line that is none."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.problem: str | None = None
        self._left = REPORT_BYTES

    def keep(self, piece: bytes) -> None:
        self._left -= len(piece)
        if self.problem is not None:
            return
        try:
            if self._left < 0:
                raise ValueError("too long")
            self.events.append(EVENT.validate_json(piece))
        except ValueError:
            self.problem = "its report was not in order"


def _wait(process: subprocess.Popen[bytes], stdin: IO[bytes], request: bytes, timeout_s: float) -> str | None:
    """How the process ended, if not well; nothing of its session is left."""
    try:
        with contextlib.suppress(BrokenPipeError), stdin:
            stdin.write(request)
    finally:
        code = wait_or_kill(process, timeout_s)
    if code is None:
        return f"it took more than {timeout_s:.0f} s"
    return None if code == 0 else f"it {how_it_ended(code)}"


def _environment(hash_seed: int) -> dict[str, str]:
    """Nothing of the host's but what Python needs: no keys."""
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    fixed = {
        "HOME": HOME,
        "TMPDIR": "/tmp",
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    return {**kept, **fixed}


@contextlib.contextmanager
def _bubblewrap(env: dict[str, str], readable: Sequence[Path]) -> Iterator[tuple[list[str], list[int]]]:
    """The command that a program goes behind, and the descriptors that it needs."""
    from whet.sandboxes.bubblewrap.command import OWN_FILES, PATH, SYSTEM_FILES
    from whet.sandboxes.bubblewrap.host import host
    from whet.sandboxes.bubblewrap.layout import links_to_python

    try:
        machine = host()
    except SandboxUnavailableError as error:
        raise SandboxUnavailableError(
            f"the package's code would run in a sandbox, and there is none: {error} "
            "Or run it unprotected, with your rights: --no-sandbox."
        ) from error
    env["PATH"] = f"{env['PATH']}:{PATH}" if "PATH" in env else PATH  # the host's may not be mounted
    env["HF_HUB_OFFLINE"] = "1"  # fail at once rather than wait for a missing network
    env["WHET_SANDBOX_BACKEND"] = "subprocess"  # no sandbox can be made in a sandbox, and this one is the boundary
    args = [machine.program, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    args += ["--hostname", "check", "--uid", "1000", "--gid", "1000"]
    for directory in machine.layout.directories:
        args += ["--ro-bind", directory, directory]
    for target, path in machine.layout.links:
        args += ["--symlink", target, path]
    for path in SYSTEM_FILES:
        args += ["--ro-bind-try", path, path]
    args += ["--proc", "/proc", "--dev", "/dev", "--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp"]
    shown = _shown([*readable, *_python_paths()], machine.layout.directories)
    for path in shown:
        args += ["--ro-bind", path, path]
    for target, link in links_to_python(map(Path, [*shown, *machine.layout.directories])):
        args += ["--symlink", target, str(link)]
    args += ["--dir", HOME, "--chdir", HOME]
    for folder, inside in _caches().items():
        args += ["--ro-bind-try", str(folder), f"{HOME}/.cache/{inside}"]
    descriptors = []
    try:
        for path, text in OWN_FILES.items():
            descriptors.append(_memory(text.encode()))
            args += ["--ro-bind-data", str(descriptors[-1]), path]
        descriptors.append(_memory(machine.seccomp))
        args += ["--remount-ro", "/dev", "--remount-ro", "/"]
        yield [*args, "--seccomp", str(descriptors[-1]), "--"], descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _caches() -> dict[Path, str]:
    """What may have been fetched before, and where it is looked for: there is no network to fetch it again."""
    from whet.envs.sandboxed.packages import cache_directory

    hub = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface", "hub")
    datasets = user_cache("datasets")
    return {cache_directory(): "whet/packages", datasets: "whet/datasets", hub: "huggingface/hub"}


def _python_paths() -> list[Path]:
    """The folders of this Python and of its importable packages, without a home that Python was started from."""
    entries = {sys.prefix, sys.base_prefix, sys.exec_prefix, *(entry for entry in sys.path if entry)}
    return [Path(entry) for entry in entries if not Path.home().is_relative_to(Path(entry).absolute())]


def _shown(paths: Sequence[Path], directories: Sequence[str]) -> list[str]:
    """Those that exist and are not shown with a folder above them, outer ones first."""
    visible: list[Path] = []
    shown = [Path(directory) for directory in directories]
    for path in sorted({path.absolute() for path in paths if path.exists()}, key=lambda path: len(path.parts)):
        if not any(path.is_relative_to(outer) for outer in [*shown, *visible]):
            visible.append(path)
    return [str(path) for path in visible]


def _memory(content: bytes) -> int:
    """A descriptor to read `content` from."""
    descriptor = os.memfd_create("whet-check", 0)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


# What the processes of a review may take together: memory and their number.
#
# A control group where one can be made, and everywhere a thread that counts and ends them. The limits of each process
# by itself are set in it (`observe.py`).

MEMORY_BYTES = 8 << 30  # or half of what the machine has, whichever is less
PROCESSES = 512  # threads among them, where a control group counts
MARGIN = 64  # so that a fork bomb is ended rather than left to try again until its time is up
LOOK_S = 0.05
_ENTER = 'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs"; shift; done 2>/dev/null; shift; exec "$@"'
_numbers = itertools.count(1)


@functools.cache
def memory_bytes() -> int:
    return min(MEMORY_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


class ProcessLimits:
    """The limits of one process and all that it starts. `command` puts it into the group before its first step."""

    def __init__(self) -> None:
        name = f"{os.getpid()}-check-{next(_numbers)}"
        self._group = cgroups.make(name, memory_bytes(), PROCESSES + MARGIN, float(os.cpu_count() or 1))
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._said: str | None = None

    def command(self, command: list[str]) -> list[str]:
        if self._group is None:
            return command
        folders = sorted({str(folder) for folder in self._group.directories.values()})
        return ["/bin/sh", "-c", _ENTER, "sh", *folders, "--", *command]

    def watch(self, pid: int) -> None:
        """Count from now on, and end the session of `pid` with all that it started when it is too much."""
        self._thread = threading.Thread(target=self._look, args=(pid,), daemon=True)
        self._thread.start()

    def end(self) -> str | None:
        """Nothing of it is left; which limit was reached, if one was."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._group is None:
            return self._said
        if self._group.killed_for_memory():
            self._said = self._said or _memory_words()
        self._group.end()
        return self._said

    def _look(self, pid: int) -> None:
        while not self._stop.wait(LOOK_S):
            processes = set(itertools.islice(family(pid), PROCESSES + 1))
            if len(processes) > PROCESSES:
                self._said = f"it started more than {PROCESSES} processes"
            elif (
                sum(map(own_memory, processes)) > memory_bytes() and sum(map(memory_share, processes)) > memory_bytes()
            ):
                self._said = _memory_words()
            if self._said is not None:
                for one in processes:
                    kill(one)
                return


def _memory_words() -> str:
    return f"it took more than {memory_bytes() / (1 << 30):.3g} GiB of memory"
