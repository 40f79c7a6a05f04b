"""A region of the terminal that is redrawn, below everything else that is printed.

rich's `Live` does the drawing. Added here: what another thread prints waits while a picture is drawn (rich computes
where the cursor goes before it writes), a window whose width changes keeps no pieces of the last picture, lines of
existing log handlers go above the picture, and the region can be released (Ctrl-Z) and acquired again.
"""

from __future__ import annotations

import logging
import sys
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
