"""A region of the terminal that is redrawn, below everything else that is printed; and the keys pressed meanwhile.

rich's `Live` does the drawing. Added here: what another thread prints waits while a picture is drawn (rich computes
where the cursor goes before it writes), a window whose width changes keeps no pieces of the last picture, lines of
existing log handlers go above the picture, and the region can be released (Ctrl-Z) and acquired again.

Single keys are read: no echo, no waiting for Enter; the settings are restored afterwards. Ctrl-C, Ctrl-Z and Ctrl-\\
stay signals. Nothing is read, and no setting changed, while the process is in the background of its terminal: the
terminal then belongs to a shell, and the kernel would stop the process.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment
from rich.text import Text

LOCK_SECONDS = 1.0
"""Longest wait for another thread: it may have been stopped by a signal inside what it writes."""


class Screen:
    """Draws on `console`. One thread draws; any thread may print."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._lengths: list[int] = []  # of the lines drawn last, in columns
        self._width = 0
        self._handlers: list[tuple[logging.StreamHandler[Any], Any]] = []
        self._lock = threading.RLock()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        locked = self._lock.acquire(timeout=LOCK_SECONDS)
        try:
            yield
        finally:
            if locked:
                self._lock.release()

    @property
    def is_open(self) -> bool:
        return self._live is not None

    def open(self) -> None:
        """Start a new region below the cursor."""
        if self._live is not None:
            return
        # A standard output that is no terminal must not be redirected.
        self._live = Live(console=self.console, auto_refresh=False, redirect_stdout=sys.stdout.isatty())
        self._lengths = []
        streams = sys.stdout, sys.stderr
        self._live.start()
        for name, before in zip(("stdout", "stderr"), streams, strict=True):
            if (redirected := getattr(sys, name)) is not before:
                setattr(sys, name, _Waiting(redirected, self._writing))
        self._redirect_loggers(streams)

    def draw(self, picture: RenderableType) -> None:
        """Replace the last picture by `picture`."""
        assert self._live is not None
        width = self.console.width
        if self._lengths and width != self._width:
            self._erase_wrapped_lines(width)
        self._width = width
        lines = self.console.render_lines(picture, self.console.options, pad=False)
        self._lengths = [Segment.get_line_length(line) for line in lines]
        with self._writing():
            self._live.update(_Drawn(lines), refresh=True)

    def print(self, line: Text) -> None:
        """A line above the picture, never broken."""
        with self._writing():
            self.console.print(line, soft_wrap=True)

    def close(self, *, erase: bool = False) -> None:
        """Keep or erase the last picture; restore the cursor and the streams."""
        live, self._live = self._live, None
        if live is None:
            return
        for handler, stream in self._handlers:
            handler.setStream(stream)
        self._handlers = []
        live.transient = erase
        with self._writing():
            live.stop()

    def _erase_wrapped_lines(self, width: int) -> None:
        """Many terminals wrap lines that no longer fit, so the last picture takes more lines than were drawn."""
        folded = sum(max(1, -(-length // max(1, width))) for length in self._lengths) - len(self._lengths)
        up = [(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)]
        self.console.control(Control(*up * folded))

    def _redirect_loggers(self, before: tuple[Any, Any]) -> None:
        """Redirect handlers of the original streams, which would write into the picture."""
        after = {id(old): new for old, new in zip(before, (sys.stdout, sys.stderr), strict=True) if old is not new}
        loggers = [logging.getLogger(), *(one for one in logging.root.manager.loggerDict.values())]
        for logger in loggers:
            for handler in getattr(logger, "handlers", ()):
                if isinstance(handler, logging.StreamHandler) and id(handler.stream) in after:
                    self._handlers.append((handler, handler.stream))
                    handler.setStream(after[id(handler.stream)])


class _Waiting:
    """A stream whose writes wait while a picture is drawn."""

    def __init__(self, stream: Any, writing: Callable[[], AbstractContextManager[None]]) -> None:
        self._stream, self._writing = stream, writing

    def write(self, text: str) -> int:
        with self._writing():
            return int(self._stream.write(text))

    def flush(self) -> None:
        with self._writing():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Drawn:
    """Lines that are already rendered."""

    def __init__(self, lines: Sequence[list[Segment]]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return self._segments()

    def _segments(self) -> Iterator[Segment]:
        for index, line in enumerate(self._lines):
            if index:
                yield Segment.line()
            yield from line


SEQUENCES = {
    "[A": "up",
    "[B": "down",
    "[C": "right",
    "[D": "left",
    "OA": "up",
    "OB": "down",
    "OC": "right",
    "OD": "left",
}
"""What arrow keys send after an escape, in the normal and in the application mode."""
KEY = re.compile(r"\x1b(\[[0-9;?<=>]*[@-~]|O.)|[^\x1b]", re.DOTALL)
UNFINISHED = re.compile(r"\x1b(\[[0-9;?<=>]*|O)?\Z")


class Keyboard:
    """The keys of the terminal at file descriptor `fd`, between `open` and `close`, which may alternate."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._before: list[Any] | None = None
        self._rest = ""

    @property
    def is_open(self) -> bool:
        return self._before is not None

    def open(self) -> None:
        """Switch to single keys. Raises OSError or `termios.error` if the terminal is gone."""
        if self._before is None:
            before = termios.tcgetattr(self.fd)
            changed = list(before)
            changed[3] &= ~(termios.ICANON | termios.ECHO)
            changed[6] = list(before[6])
            changed[6][termios.VMIN], changed[6][termios.VTIME] = 1, 0
            termios.tcsetattr(self.fd, termios.TCSADRAIN, changed)
            self._before = before

    def close(self) -> None:
        """Restore what `open` changed."""
        before, self._before = self._before, None
        # In the background the shell has already changed the settings for itself.
        if before is not None and in_foreground(self.fd):
            termios.tcsetattr(self.fd, termios.TCSADRAIN, before)

    def read(self) -> list[str]:
        """The keys pressed since, once the descriptor is readable: `left`, `right`, `up`, `down`, or a character.

        Raises EOFError where no more can come.
        """
        data = os.read(self.fd, 1024)
        if not data:
            raise EOFError
        text = self._rest + data.decode(errors="replace")
        cut = UNFINISHED.search(text)
        text, self._rest = (text[: cut.start()], text[cut.start() :]) if cut else (text, "")
        keys = []
        for match in KEY.finditer(text):
            key = match[0] if match[1] is None else SEQUENCES.get(match[1], "")
            if key:
                keys.append(key)
        return keys


def in_foreground(fd: int) -> bool:
    """Whether this process may use the terminal; true for a terminal without job control."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return True


def find_keyboard() -> Keyboard | None:
    """Standard input, where it is a terminal."""
    try:
        fd = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or replaced by something that is no file
        return None
    return Keyboard(fd) if os.isatty(fd) else None
