"""The live view of a session of evaluations, in a terminal.

Rollouts are counted where they are told of; drawing, and reading keys, is done by a thread of its own, so that the
clock goes on and keys are answered while a model computes or an endpoint is silent, and so that a terminal that takes
no output holds up nobody. It draws at most four times a second, and takes a twentieth of a core at most.

The terminal is given back whatever ends the process, or stops it (Ctrl-Z); while the process is in the background
nothing is drawn and no key is read.
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
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from types import FrameType
from typing import Any

from rich.console import Console
from rich.text import Text

from whet.evals.live.keyboard import Keyboard, in_foreground
from whet.evals.live.progress import SAMPLES, SessionProgress
from whet.evals.live.screen import Screen
from whet.evals.live.views import footer, live_view
from whet.evals.observer import PlannedEval
from whet.evals.summary import EvalSummary
from whet.terminal import safe_text
from whet.types import RolloutOutput

REFRESH_SECONDS = 0.25
IDLE_SECONDS = 1.0
"""Between pictures while nothing happens but the clock."""
MOST_OF_A_CORE = 0.05
"""Share of a core that drawing may take."""
NEXT, PREVIOUS = {"right", "down", "n", "\t"}, {"left", "up", "p"}
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class LiveView:
    """An observer that draws on `console`; `clock` is in seconds and only ever compared with itself."""

    def __init__(
        self, console: Console, keyboard: Keyboard | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._screen, self._keyboard = Screen(console), keyboard
        self._session: SessionProgress | None = None
        self._thread: threading.Thread | None = None
        self._counting = threading.Lock()  # of `_session`
        self._drawing = threading.RLock()  # of the screen and the keyboard; a signal's handler may hold it already
        self._notes: deque[str] = deque()
        self._wake_read, self._wake_write = -1, -1
        self._ending = False
        self._changed = True
        self._selected: int | None = None  # None: the one that works
        self._sample = 0
        self._asked_to_stop = False
        self._next_draw = self._next_idle_draw = 0.0
        self._size = (0, 0)
        self._process = os.getpid()  # a child that is forked off has no thread, and the terminal is not its own
        self._handlers: dict[signal.Signals, Any] = {}

    def start(self, evaluations: Sequence[PlannedEval]) -> None:
        self._session = SessionProgress(evaluations, self._clock)
        self._wake_read, self._wake_write = os.pipe()
        self._handle_signals()
        atexit.register(self._give_back)
        self._thread = threading.Thread(target=self._run, name="whet-live-view", daemon=True)
        self._thread.start()

    def rollout(self, evaluation: int, row: RolloutOutput) -> None:
        assert self._session is not None
        with self._counting:
            self._session.rollout(evaluation, row)
        self._changed = True

    def note(self, text: str) -> None:
        self._notes.extend(safe_text(line, 1000) for line in text.splitlines())
        self._changed = True

    def finish(self, evaluation: int, summary: EvalSummary) -> None:
        assert self._session is not None
        with self._counting:
            self._session.finish(evaluation)
        self._changed = True

    def close(self) -> None:
        if self._thread is None:
            return
        self._ending = True
        os.write(self._wake_write, b"x")
        self._thread.join()
        self._thread = None
        self._release_signals()
        atexit.unregister(self._give_back)
        os.close(self._wake_read)
        os.close(self._wake_write)
        with suppress(OSError):  # where the terminal is gone, nobody is left to be told
            self._print_notes()  # those that came while nothing could be drawn: in the background

    def _run(self) -> None:
        """The thread: draw, wait for a key or the next picture, and in the end draw once more."""
        assert self._session is not None
        try:
            while not self._ending:
                with self._drawing:
                    self._take_terminal()
                    self._draw_if_due()
                self._wait_for_keys()
            with self._drawing:
                if self._screen.is_open:
                    self._draw(keys=False)
        except (OSError, termios.error):
            pass  # the terminal is gone, and with it whoever watched: the evaluation goes on
        finally:
            with self._counting:
                finished = self._session.finished
            # What stands there in the end is the summary; where there will be none, the last picture.
            self._give_back(erase=finished)

    def _take_terminal(self) -> None:
        """Draw and read keys in the foreground alone. After Ctrl-Z and `fg` this takes the terminal again."""
        if not in_foreground(self._screen.console.file.fileno()):
            self._give_back()
            return
        if not self._screen.is_open:
            self._screen.open()
            self._changed = True
        if self._keyboard is not None:
            self._keyboard.open()

    def _give_back(self, erase: bool = False) -> None:
        if os.getpid() != self._process:
            return
        with self._drawing:
            try:
                if self._keyboard is not None:
                    self._keyboard.close()
                self._screen.close(erase=erase)
            except (OSError, termios.error):
                pass  # there is no terminal any more to give back

    def _draw_if_due(self) -> None:
        now, size = self._clock(), self._screen.console.size
        due = now >= self._next_draw and (self._changed or now >= self._next_idle_draw or size != self._size)
        if due and self._screen.is_open:
            self._size = size
            self._draw()

    def _draw(self, keys: bool = True) -> None:
        began = time.thread_time()
        self._changed = False
        assert self._session is not None
        with self._counting:
            selected = self._session.current if self._selected is None else self._selected
            facts = self._session.facts(selected)
        self._print_notes()
        keys = keys and self._keyboard is not None
        last = footer(keys, len(facts.lines) > 1, keys and self._asked_to_stop)
        width, height = self._screen.console.size
        self._screen.draw(live_view(facts, SAMPLES[self._sample], width, max(2, height - 1), last))
        # What the thread computed, not how long it took: waiting for the terminal, or for its turn, costs nobody.
        pause = max(REFRESH_SECONDS, (time.thread_time() - began) / MOST_OF_A_CORE)
        self._next_draw = self._clock() + pause
        self._next_idle_draw = self._clock() + max(IDLE_SECONDS, pause)

    def _print_notes(self) -> None:
        while self._notes:
            self._screen.console.print(Text(self._notes.popleft()), soft_wrap=True)

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
        assert self._session is not None
        count = len(self._session.evaluations)
        selected = self._session.current if self._selected is None else self._selected
        if key == "q" and self._asked_to_stop:
            os.kill(os.getpid(), signal.SIGINT)  # exactly what Ctrl-C does
        self._asked_to_stop = key == "q" and not self._asked_to_stop
        if key in NEXT:
            self._selected = (selected + 1) % count
        elif key in PREVIOUS:
            self._selected = (selected - 1) % count
        elif key == "s":
            self._sample = (self._sample + 1) % len(SAMPLES)

    def _handle_signals(self) -> None:
        """What would end or stop the process gives the terminal back first; handlers of others are left alone."""
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
        # Held until the process goes on, so that the thread does not take the terminal again before it has stopped.
        with self._drawing if own else nullcontext():
            self._give_back()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            signal.signal(number, self._on_stop)

    def _on_end(self, number: int, _: FrameType | None) -> None:
        self._give_back()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
