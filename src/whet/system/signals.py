"""Ctrl-C and SIGTERM, while an event loop runs.

    first     `request_stop` is called on the event loop; where an environment's code keeps the loop, that code is named
    second    `end` is called and the process ends, whatever keeps the loop

The handlers are Python's, not the event loop's: they run inside code that never returns to the loop (`while True`), and
inside C code that checks for signals (a regular expression). Other C code that holds the interpreter lock stops them
too. Python still writes the number of the signal to the wakeup descriptor, which a small process reads: it reports that
the signal was not handled, and kills this process at the second one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from whet.system.children import Listener

STOPPING = (signal.SIGINT, signal.SIGTERM)
HANDLED = b"\0"
DRAWING_S = 0.5
"""Seconds for a drawing thread to show a line, in a handler that code holding the interpreter lock has let in."""

# Reads numbers of signals and HANDLED. A signal that was not handled within a second is reported; the second one kills.
LISTENER = r"""
import os, select, signal, sys, termios
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
parent, sent, handled = int(sys.argv[1]), 0, 0

def say(line):
    try:
        os.write(2, f"\n{line}\n".encode())
    except OSError:
        pass

def give_terminal_back():
    try:
        settings = termios.tcgetattr(2)
        settings[3] |= termios.ICANON | termios.ECHO
        termios.tcsetattr(2, termios.TCSANOW, settings)
        os.write(2, b"\x1b[?25h")
    except (OSError, termios.error):
        pass

while True:
    waiting = sent > handled
    if select.select([0], [], [], 1.0 if waiting else 30.0)[0]:
        data = os.read(0, 4096)
        if not data:
            break
        for byte in data:
            if byte in (signal.SIGINT, signal.SIGTERM):
                sent += 1
            elif byte == 0:
                handled = sent
    elif os.getppid() != parent:
        break
    elif waiting and sent == 1:
        handled = sent
        say("waiting for code that holds the interpreter lock and cannot be interrupted; press again to end")
    elif waiting:
        give_terminal_back()
        say("ended: the running code cannot be interrupted")
        os.kill(parent, signal.SIGKILL)
        break
"""
_WHET = Path(__file__).resolve().parents[1]
_EVENT_LOOP = asyncio.events.__file__
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_OWN_LIBRARIES = ("clients", "display", "inference", "models", "records", "rl")
"""Rooms that call libraries for their own work: what they call is no environment's code."""


class _Handler:
    """Handles both signals; Python calls it on the main thread, inside the code that is running there."""

    def __init__(
        self, request_stop: Callable[[int], None], say: Callable[[str], None], end: Callable[[], object]
    ) -> None:
        self._request_stop, self._say, self._end = request_stop, say, end
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self._saying = self._ending = False
        self.listener: Listener | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self.listener is not None:
            self.listener.tell(HANDLED)
        if self._count > 1:
            if not self._saying or self._count > 2:
                self._end_the_process(number)
            return  # inside `say`, which is let finish: it may be writing to the terminal
        with suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self._request_stop, number)
        code = environment_code(frame)
        if code is not None:
            again = "press again to end" if number == signal.SIGINT else "a second signal ends the process"
            self._saying = True
            self._say(f"waiting for {line_of(code, short=True)}; {again}")
            self._saying = False
            if self._count > 1:
                self._end_the_process(number)
            time.sleep(DRAWING_S)

    def _end_the_process(self, number: int) -> NoReturn:
        if not self._ending:  # else another signal arrived while `end` was at work
            self._ending = True
            with suppress(Exception):
                self._end()
        os._exit(128 + number)


@contextmanager
def on_stopping_signals(
    request_stop: Callable[[int], None], *, say: Callable[[str], None], end: Callable[[], object]
) -> Iterator[None]:
    """Inside, the first signal calls `request_stop` with its number, and the second ends the process.

    Outside the main thread no signal can be handled, and nothing changes.

    Args:
        request_stop: called on the running event loop.
        say: gets the line that names what keeps the loop.
        end: called before the process ends; gives the terminal back.
    """
    handler = _Handler(request_stop, say, end)
    try:
        before = {number: signal.signal(number, handler) for number in STOPPING}
    except ValueError:
        yield
        return
    wakeup = -1
    with suppress(OSError):  # no process to be had: C code that holds the interpreter lock cannot be ended by a signal
        handler.listener = Listener(LISTENER)
        wakeup = signal.set_wakeup_fd(handler.listener.fd, warn_on_full_buffer=False)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier if earlier is not None else signal.SIG_DFL)
        if handler.listener is not None:
            signal.set_wakeup_fd(wakeup)
            handler.listener.close()


class StoppedBySignal(Exception):
    """Ctrl-C or SIGTERM, by its number, has cancelled the work."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def cancelled_by_signals(*, say: Callable[[str], None], restore: Callable[[], object]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM cancels the calling task; the second ends the process.

    A task that was cancelled in this way raises `StoppedBySignal`. What was saved stays saved; `restore` gives the
    terminal back before the process ends.
    """
    task = asyncio.current_task()
    assert task is not None
    stopped: list[int] = []

    def stop(number: int) -> None:
        stopped.append(number)
        task.cancel()

    with on_stopping_signals(stop, say=say, end=restore):
        try:
            yield
        except asyncio.CancelledError:
            if not stopped:
                raise
            raise StoppedBySignal(stopped[0]) from None


def environment_code(frame: FrameType | None) -> FrameType | None:
    """The innermost call of the environment whose code the event loop runs; None where it runs none.

    That is code outside of whet and Python, called by the loop itself or by a room of whet that runs environments; of
    what it calls in turn, the calls in its own folder are the environment's.
    """
    calls: list[FrameType] = []  # innermost first, up to the event loop
    while frame is not None and frame.f_code.co_filename != _EVENT_LOOP:
        calls.append(frame)
        frame = frame.f_back
    if frame is None:
        return None
    caller = None
    for index in range(len(calls) - 1, -1, -1):
        name = calls[index].f_code.co_filename
        if name.startswith(str(_WHET)):
            caller = Path(name).relative_to(_WHET).parts[0]
        elif _of_others(name):
            if caller in _OWN_LIBRARIES:
                return None
            folder = str(Path(name).parent)
            return next(call for call in calls[: index + 1] if call.f_code.co_filename.startswith(folder))
    return None


def line_of(frame: FrameType | None, *, short: bool = False) -> str:
    """`file.py, line 7, in name`; the file's whole path unless `short`."""
    if frame is None:
        return "unknown code"
    file = frame.f_code.co_filename
    return f"{Path(file).name if short else file}, line {frame.f_lineno}, in {frame.f_code.co_name}"


def _of_others(name: str) -> bool:
    return not name.startswith("<frozen") and (not name.startswith(_STANDARD_LIBRARY) or "site-packages" in name)
