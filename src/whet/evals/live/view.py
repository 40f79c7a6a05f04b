"""The live view of a session of evaluations, in a terminal.

Rollouts are counted as they are reported; the `Painter` draws what is known, on a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from whet.display.live.keyboard import Keyboard
from whet.display.live.painter import Painter
from whet.evals.analysis.summary import EvalSummary
from whet.evals.live.progress import SAMPLES, SessionProgress
from whet.evals.live.views import footer, live_view
from whet.evals.observer import PlannedEval
from whet.system.terminal import safe_text
from whet.types import RolloutOutput

NEXT, PREVIOUS = {"right", "down", "n", "\t"}, {"left", "up", "p"}


class LiveView:
    """An observer that draws on `console`; `clock` is in seconds and only ever compared with itself."""

    def __init__(
        self, console: Console, keyboard: Keyboard | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._console = clock, console
        self._painter = Painter(self, console, keyboard, clock)
        self._session: SessionProgress | None = None
        self._counting = threading.Lock()  # of `_session`
        self._selected: int | None = None  # None: the one that works
        self._sample = 0

    def start(self, evaluations: Sequence[PlannedEval]) -> None:
        self._session = SessionProgress(evaluations, self._clock)
        self._painter.start()

    def rollout(self, evaluation: int, row: RolloutOutput) -> None:
        assert self._session is not None
        with self._counting:
            self._session.rollout(evaluation, row)
        self._painter.touch()

    def note(self, text: str) -> None:
        if self._session is None:
            for line in text.splitlines():
                self._console.print(Text(safe_text(line, 1000)), soft_wrap=True)
        else:
            self._painter.note(text)

    def finish(self, evaluation: int, summary: EvalSummary) -> None:
        assert self._session is not None
        with self._counting:
            self._session.finish(evaluation)
        self._painter.touch()

    def close(self) -> None:
        self._painter.close()

    @property
    def transient(self) -> bool:
        """What stands there in the end is the summary; where there will be none, the last picture."""
        assert self._session is not None
        with self._counting:
            return self._session.finished

    def picture(self, width: int, height: int, keys: bool, asked_to_stop: bool) -> RenderableType:
        assert self._session is not None
        with self._counting:
            selected = self._session.current if self._selected is None else self._selected
            facts = self._session.facts(selected)
        last = footer(keys, len(facts.lines) > 1, asked_to_stop)
        return live_view(facts, SAMPLES[self._sample], width, height, last)

    def press(self, key: str) -> None:
        assert self._session is not None
        count = len(self._session.evaluations)
        selected = self._session.current if self._selected is None else self._selected
        if key in NEXT:
            self._selected = (selected + 1) % count
        elif key in PREVIOUS:
            self._selected = (selected - 1) % count
        elif key == "s":
            self._sample = (self._sample + 1) % len(SAMPLES)
