"""The live view of a search: it collects events, and the `Painter` draws them on a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from whet.display.live.keyboard import Keyboard
from whet.display.live.painter import Painter
from whet.gepa.live.progress import SearchProgress
from whet.gepa.live.views import COMPARISONS, footer, last_view, live_view, moved
from whet.gepa.observers import Forwarder
from whet.gepa.types import SearchPlan
from whet.system.terminal import safe_text

NEXT, PREVIOUS = {"right", "down", "n", "\t"}, {"left", "up", "p"}
SCROLL_LINES = 5


class SearchLiveView(Forwarder):
    """An observer that draws on `console` from the plan on; `clock` is in seconds and only compared with itself."""

    transient = False  # the last picture stays above the final lines

    def __init__(
        self, title: str, console: Console, keyboard: Keyboard | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._progress = SearchProgress(title, clock)
        self._lock = threading.RLock()  # of `_progress`; a signal's handler may hold it already
        self._painter = Painter(self, console, keyboard, clock)
        self._started = False
        self._selected: int | None = None  # None: the candidate that is worked on
        self._comparison = 0
        self._scrolled = 0

    def planned(self, plan: SearchPlan) -> None:
        with self._lock:
            self._progress.planned(plan)
        if not self._started:
            self._started = True
            self._painter.start()

    def send(self, event: str, *args: Any) -> None:
        with self._lock:
            getattr(self._progress, event)(*args)
        self._painter.touch()

    def note(self, line: str) -> None:
        if self._started:
            self._painter.note(line)
        else:
            self._console.print(Text(safe_text(line, 1000)), soft_wrap=True)

    def close(self) -> None:
        with self._lock:
            self._progress.close()
        self._painter.close()

    def picture(self, width: int, height: int, keys: bool, asked_to_stop: bool) -> RenderableType:
        with self._lock:
            facts, ended = self._progress.facts(), self._progress.ended
        if ended:
            return last_view(facts, width, height)
        return live_view(
            facts,
            width,
            height,
            selected=self._selected,
            comparison=COMPARISONS[self._comparison],
            scrolled=self._scrolled,
            footer=footer(keys, asked_to_stop),
        )

    def press(self, key: str) -> None:
        if key in NEXT | PREVIOUS:
            with self._lock:
                facts = self._progress.facts()
            self._selected = moved(facts, self._selected, 1 if key in NEXT else -1)
            self._scrolled = 0
        elif key == "d":
            self._comparison = (self._comparison + 1) % len(COMPARISONS)
            self._scrolled = 0
        elif key == " ":
            self._scrolled += SCROLL_LINES
        elif key == "b":
            self._scrolled = max(0, self._scrolled - SCROLL_LINES)
