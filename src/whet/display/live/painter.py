"""Draws the state of a running command in a terminal.

A separate thread draws and reads keys, so that the clock continues and keys are answered while a model computes or an
endpoint is silent, and a terminal that accepts no output does not block the work. It draws at most four times a second
and uses a twentieth of a core at most.

The terminal is restored whatever ends the process or stops it (Ctrl-Z); in the background nothing is drawn and no key
is read.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from whet.display.live.screen import Keyboard, Screen, in_foreground
from whet.system.terminal import safe_text

if TYPE_CHECKING:
    from whet.display.live import RunView

REFRESH_SECONDS = 0.25
IDLE_SECONDS = 1.0
"""Seconds between pictures in which only the clock changes."""
OPEN_SECONDS = 1.0
"""Longest wait of `start` for the terminal."""
MOST_OF_A_CORE = 0.05
"""Share of a core that drawing may use."""
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Painter:
    """Draws `view` on `console`, from `start` to `close`.

    `clock` is in seconds from any start.
    """

    def __init__(
        self,
        view: RunView,
        console: Console,
        keyboard: Keyboard | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view, self._clock = view, clock
        self._screen, self._keyboard = Screen(console), keyboard
        self._thread: threading.Thread | None = None
        self._drawing = threading.RLock()  # guards screen and keyboard; a signal handler may run while it is held
        self._notes: deque[str] = deque()
        self._wake_read, self._wake_write = -1, -1
        self._ending = False
        self._changed = True
        self._stop_requested = False
        self._next_draw = self._next_idle_draw = 0.0
        self._size = (0, 0)
        self._process = os.getpid()  # a forked child has no thread and does not own the terminal
        self._handlers: dict[signal.Signals, Any] = {}

    def start(self) -> None:
        self._wake_read, self._wake_write = os.pipe()
        self._handle_signals()
        atexit.register(self._end_at_exit)
        opened = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="whet-live-view", daemon=True)
        self._thread.start()
        # What is printed from now on has to go above the picture; a terminal that takes no output is not waited for.
        opened.wait(OPEN_SECONDS)

    @property
    def is_drawing(self) -> bool:
        """Whether it was started and not closed."""
        return self._thread is not None

    def touch(self) -> None:
        """The view has changed: draw it again."""
        self._changed = True

    def note(self, text: str) -> None:
        """Print lines above the picture that stay."""
        self._notes.extend(safe_text(line, 1000) for line in text.splitlines())
        self._changed = True

    def close(self) -> None:
        if self._thread is None:
            return
        self._ending = True
        os.write(self._wake_write, b"x")
        self._thread.join()
        self._thread = None
        self._release_signals()
        atexit.unregister(self._end_at_exit)
        os.close(self._wake_read)
        os.close(self._wake_write)
        with suppress(OSError):  # the terminal may be gone
            self._print_notes()  # those noted in the background, where nothing is drawn

    def _run(self, opened: threading.Event) -> None:
        """The thread: draw, wait for a key or the next picture; at the end draw once more."""
        try:
            while not self._ending:
                with self._drawing:
                    if self._ending:
                        break
                    self._acquire_terminal()
                    opened.set()
                    self._draw_if_due()
                self._wait_for_keys()
            with self._drawing:
                if self._screen.is_open:
                    self._draw(keys=False)
        except (OSError, termios.error):
            pass  # the terminal is gone: the work continues
        finally:
            self._release_terminal(erase=self._view.transient)

    def _acquire_terminal(self) -> None:
        """Draw and read keys only in the foreground. After Ctrl-Z and `fg` this acquires the terminal again."""
        if not in_foreground(self._screen.console.file.fileno()):
            self._release_terminal()
            return
        if not self._screen.is_open:
            self._screen.open()
            self._changed = True
        if self._keyboard is not None:
            self._keyboard.open()

    def _end_at_exit(self) -> None:
        """Without `close` the thread still runs at the end, and would acquire the terminal again."""
        self._ending = True
        self._release_terminal()

    def _release_terminal(self, erase: bool = False) -> None:
        if os.getpid() != self._process:
            return
        with self._drawing:
            try:
                if self._keyboard is not None:
                    self._keyboard.close()
                self._screen.close(erase=erase)
            except (OSError, termios.error):
                pass  # the terminal is gone

    def _draw_if_due(self) -> None:
        now, size = self._clock(), self._screen.console.size
        due = now >= self._next_draw and (self._changed or now >= self._next_idle_draw or size != self._size)
        if due and self._screen.is_open:
            self._size = size
            self._draw()

    def _draw(self, keys: bool = True) -> None:
        began = time.thread_time()
        self._changed = False
        self._print_notes()
        keys = keys and self._keyboard is not None
        width, height = self._screen.console.size
        self._screen.draw(self._view.picture(width, max(2, height - 1), keys, keys and self._stop_requested))
        # CPU time of the thread: waiting for the terminal or the interpreter's lock is no load.
        pause = max(REFRESH_SECONDS, (time.thread_time() - began) / MOST_OF_A_CORE)
        self._next_draw = self._clock() + pause
        self._next_idle_draw = self._clock() + max(IDLE_SECONDS, pause)

    def _print_notes(self) -> None:
        while self._notes:
            self._screen.print(Text(self._notes.popleft()))

    def _wait_for_keys(self) -> None:
        keyboard = self._keyboard if self._keyboard is not None and self._keyboard.is_open else None
        wanted = [self._wake_read] if keyboard is None else [self._wake_read, keyboard.fd]
        seconds = max(0.0, self._next_draw - self._clock())
        ready = select.select(wanted, [], [], min(REFRESH_SECONDS, seconds) or REFRESH_SECONDS)[0]
        if keyboard is None or keyboard.fd not in ready or not in_foreground(keyboard.fd):
            return
        try:
            keys = keyboard.read()
        except EOFError:
            with self._drawing:
                keyboard.close()
            self._keyboard = None
            return
        for key in keys:
            self._press(key)
        if keys:
            self._changed, self._next_draw = True, self._clock()

    def _press(self, key: str) -> None:
        if key == "q" and self._stop_requested:
            os.kill(os.getpid(), signal.SIGINT)  # exactly what Ctrl-C does
        self._stop_requested = key == "q" and not self._stop_requested
        if key != "q":
            self._view.press(key)

    def _handle_signals(self) -> None:
        """Restore the terminal before a signal ends or stops the process; existing handlers are kept."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in ((signal.SIGTSTP, self._on_stop), *((number, self._on_end) for number in ENDING)):
            if signal.getsignal(number) is signal.SIG_DFL:
                self._handlers[number] = handler
                signal.signal(number, handler)

    def _release_signals(self) -> None:
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == handler:
                signal.signal(number, signal.SIG_DFL)
        self._handlers = {}

    def _on_stop(self, number: int, _: FrameType | None) -> None:
        own = os.getpid() == self._process
        # Held until the process continues, so that the thread does not acquire the terminal before the process stops.
        with self._drawing if own else nullcontext():
            self._release_terminal()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            signal.signal(number, self._on_stop)

    def _on_end(self, number: int, _: FrameType | None) -> None:
        self._release_terminal()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
