"""The progress of a run while it works: a live view in a terminal, plain lines elsewhere.

Training, evaluations and searches each have one `RunView`. It collects the run's events under `lock`, prints the plain
lines that are due, and turns what it has collected into a picture. When and where that is drawn is the part of the
painter, which uses the terminal without leaving it in a broken state.
"""

from __future__ import annotations

import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from whet.system.terminal import safe_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from whet.display.live.screen import Keyboard

SECONDS_BETWEEN = 60.0
"""Seconds after which plain lines report progress, also where a tenth of the work takes longer."""
LOCK_SECONDS = 1.0
"""Longest wait of the drawing thread for the collected events.

The handler of a second Ctrl-C closes the view while the code below it may hold the lock.
"""
NEXT, PREVIOUS = {"right", "down", "n", "\t"}, {"left", "up", "p"}


class RunObserver:
    """Receives the events of a run as they happen. A subclass overrides those that it needs; the others do nothing."""

    def note(self, text: str) -> None:
        """Lines for the user: a worker that was replaced, an endpoint that rests."""

    def watch(self, sampling: Callable[[], str]) -> None:
        """`sampling` says in words what a model run here is sampling, "" for nothing; other threads may call it."""

    def close(self) -> None:
        """The last event, also after a failure: the terminal is restored here."""


Observer = TypeVar("Observer", bound=RunObserver)


def forwards(observer: type[Observer]) -> type[Observer]:
    """Class decorator: events that the class does not handle itself are passed to its `send(event, *args)`."""

    def forward(event: str) -> Callable[..., None]:
        return lambda self, *args: self.send(event, *args)

    for event in dir(observer):
        if not event.startswith("_") and event not in vars(observer):
            setattr(observer, event, forward(event))
    return observer


@dataclass(frozen=True)
class Output:
    """Where a run is shown. `clock` is in seconds and only ever compared with itself."""

    console: Console
    live: bool = False
    keyboard: Keyboard | None = None
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def find(cls, *, plain: bool = False, stderr: bool = True, keys: bool = True) -> Output:
        """A live view if a terminal that can show one is there (and not `plain`), else plain lines.

        It is drawn on standard error, so that a result on standard output can be piped; with `stderr` False on standard
        output. `keys`: whether keys are read.
        """
        console = None if plain else live_console(stderr=stderr)
        if console is None:
            return cls(plain_console(stderr=stderr))
        from whet.display.live.screen import find_keyboard

        return cls(console, live=True, keyboard=find_keyboard() if keys else None)


class RunView(RunObserver):
    """An observer that shows a run. Always close it: that restores the terminal."""

    stop_question = ""
    """Shown after a first q."""

    def __init__(self, output: Output) -> None:
        self.console, self.clock = output.console, output.clock
        self.lock = threading.RLock()  # of everything that `draw` reads
        self.closed = False
        self.sampling: Callable[[], str] = str
        self._painter = None
        self._tenths: dict[int, int] = {}
        self._printed = output.clock()  # when the last line was
        if output.live:
            from whet.display.live.painter import Painter

            self._painter = Painter(self, output.console, output.keyboard, output.clock)

    @property
    def live(self) -> bool:
        """Whether there is a picture; plain lines are not printed then."""
        return self._painter is not None

    @property
    def keys(self) -> str:
        """What the keys do; shown where keys are read."""
        return ""

    @abstractmethod
    def draw(self, width: int, height: int, footer: str) -> RenderableType:
        """At most `height` lines of what was collected; `footer` is the last one, left out where it is empty."""

    def move(self, by: int) -> None:
        """The next (1) or the previous (-1) of several was requested by a key."""

    def key(self, key: str) -> None:
        """Any other key."""

    @property
    def transient(self) -> bool:
        """Whether the last picture is erased in the end, because other output replaces it."""
        return False

    def begin(self) -> None:
        """Draw from now on; before, notes are printed as lines."""
        if self._painter is not None:
            self._painter.start()

    def changed(self) -> None:
        """Draw again."""
        if self._painter is not None:
            self._painter.touch()

    def due(self, tenth: int, which: int = 0) -> bool:
        """Whether progress is worth a line: another tenth is done, or no line was printed for a minute."""
        if tenth <= self._tenths.get(which, 0) and self.clock() - self._printed < SECONDS_BETWEEN:
            return False
        self.passed(tenth, which)
        return True

    def passed(self, tenth: int, which: int = 0) -> None:
        """This tenth needs no line."""
        self._tenths[which] = max(tenth, self._tenths.get(which, 0))

    def line(self, line: str) -> None:
        """A plain line, where there is no picture."""
        if not self.live:
            self.print(line)

    def print(self, line: str) -> None:
        """One line, never broken, so that it can be copied and grepped."""
        from rich.text import Text

        self._printed = self.clock()
        self.console.print(Text(line), soft_wrap=True)
        if not self.console.is_terminal:
            self.console.file.flush()

    def note(self, text: str) -> None:
        if self._painter is not None and self._painter.is_drawing:
            self._painter.note(text)
            return
        for line in text.splitlines():
            self.print(safe_text(line, 1000))

    def watch(self, sampling: Callable[[], str]) -> None:
        self.sampling = sampling

    def close(self) -> None:
        self.closed = True
        if self._painter is not None:
            self._painter.close()

    def picture(self, width: int, height: int, keys: bool, stop_requested: bool) -> RenderableType:
        """At most `height` lines; `keys`: whether keys are read; `stop_requested`: whether another q stops.

        The painter's thread calls it.
        """
        locked = self.lock.acquire(timeout=LOCK_SECONDS)
        try:
            return self.draw(width, height, self.footer(keys, stop_requested))
        finally:
            if locked:
                self.lock.release()

    def footer(self, keys: bool, stop_requested: bool) -> str:
        """What the keys do; nothing where no keys are read."""
        return self.stop_question if stop_requested else self.keys if keys else ""

    def press(self, key: str) -> None:
        """A key that is not the painter's own (q)."""
        with self.lock:
            if key in NEXT | PREVIOUS:
                self.move(1 if key in NEXT else -1)
            else:
                self.key(key)


def live_console(*, stderr: bool = True) -> Console | None:
    """Standard error (or output), if a live view can be drawn on it and the process is in the foreground.

    None if it is no terminal, if the terminal cannot move its cursor (TERM=dumb) or show Unicode, or if the process was
    started in its background. NO_COLOR removes the colours only.
    """
    from whet.system.console import SafeConsole

    console = SafeConsole(stderr=stderr)
    unicode = (console.encoding or "").lower().startswith("utf")
    if not (_is_terminal(console.file) and console.is_interactive and unicode):
        return None
    from whet.display.live.screen import in_foreground

    return console if in_foreground(console.file.fileno()) else None


def plain_console(*, stderr: bool = True) -> Console:
    """Standard error (or output) for plain lines, whatever it is."""
    from whet.system.console import SafeConsole

    return SafeConsole(stderr=stderr, force_terminal=False)


def _is_terminal(file: object) -> bool:
    """Whether it really is one: rich also believes FORCE_COLOR, which people set for log files."""
    try:
        return os.isatty(file.fileno())  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
