"""What importing a module does to the world outside it, seen by Python's audit hook.

Only the package's own effects are reported: an effect belongs to the innermost frame that is not of the
standard library, so a library that looks for its cache when it is imported is not held against the package. An audit
hook stays for the life of its process, so this is for a process of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from whet.authoring.review.observations import Effect, SideEffect

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
EVENTS: dict[str, Effect] = {
    "os.mkdir": "writes",
    "os.remove": "writes",
    "os.rename": "writes",
    "os.rmdir": "writes",
    "os.symlink": "writes",
    "os.link": "writes",
    "os.truncate": "writes",
    "os.chmod": "writes",
    "subprocess.Popen": "process",
    "os.system": "process",
    "os.exec": "process",
    "os.fork": "process",
    "os.forkpty": "process",
    "os.posix_spawn": "process",
    "pty.spawn": "process",
    "socket.connect": "network",
    "socket.bind": "network",
    "socket.getaddrinfo": "network",
    "socket.gethostbyname": "network",
    "socket.sendto": "network",
    "_thread.start_new_thread": "thread",
    "_thread.start_joinable_thread": "thread",
    "os.putenv": "environment",
    "os.unsetenv": "environment",
    "os.chdir": "environment",
}
MAX_EFFECTS = 50
_STDLIB = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_SITE = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
_OWN = str(Path(__file__).parent)


@contextmanager
def watched(folder: Path, emit: Callable[[SideEffect], None]) -> Iterator[None]:
    """Report what code in `folder` does to files, processes, network, threads and environment while this is open."""
    watching = True
    seen: set[tuple[str, str]] = set()
    prefix = f"{folder.resolve()}{os.sep}"
    signals, threads = _handlers(), set(threading.enumerate())

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal watching
        if not watching:
            return
        effect = EVENTS.get(event)
        if event == "open" and _writes(args):
            effect = "writes"
        if effect is None or len(seen) >= MAX_EFFECTS:
            return
        watching = False  # what reporting does is no effect
        try:
            where = _responsible(sys._getframe(1), prefix)
            if where is not None and (effect, where) not in seen:
                seen.add((effect, where))
                emit(SideEffect(effect=effect, detail=_detail(event, args), where=where))
        finally:
            watching = True

    sys.addaudithook(hook)
    try:
        yield
    finally:
        watching = False
        for number in sorted(number for number, handler in _handlers().items() if handler != signals.get(number)):
            emit(SideEffect(effect="environment", detail=f"handler of {signal.Signals(number).name}", where=""))
        if sys.version_info < (3, 12):  # which has no audit event for threads
            for thread in set(threading.enumerate()) - threads:
                if not _file_of(thread).startswith(_SITE):
                    emit(SideEffect(effect="thread", detail=f"thread {thread.name}", where=""))


def _file_of(thread: threading.Thread) -> str:
    """Where what a thread runs was written."""
    function = getattr(thread, "_target", None) or type(thread).run
    return str(getattr(getattr(function, "__code__", None), "co_filename", ""))


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _writes(args: tuple[Any, ...]) -> bool:
    path, mode, flags = args
    if path in ("/dev/null", b"/dev/null") or isinstance(path, int):
        return False
    return bool(flags & WRITING) if isinstance(flags, int) else isinstance(mode, str) and not set(mode) <= set("rbtU")


def _responsible(frame: FrameType | None, prefix: str) -> str | None:
    """`file:line` in the package where it is the package's own doing, else None."""
    while frame is not None:
        file = frame.f_code.co_filename
        library = file.startswith(_SITE) or not file.startswith(_STDLIB)
        if library and not file.startswith(("<", _OWN)):
            return f"{file}:{frame.f_lineno}" if os.path.abspath(file).startswith(prefix) else None
        frame = frame.f_back
    return None


def _detail(event: str, args: tuple[Any, ...]) -> str:
    shown = [repr(arg) for arg in args if isinstance(arg, str | bytes | tuple | list) and arg]
    return f"{event} {' '.join(shown)}"[:300]
