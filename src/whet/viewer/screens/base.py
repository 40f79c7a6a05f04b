"""What every screen of the viewer has: the way back, help, copying and exporting, and lines that fit."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.screen import Screen

from whet.viewer.widgets.lines import plain

if TYPE_CHECKING:
    from whet.viewer.app import Viewer

LAST_KEYS: tuple[Binding, ...] = (
    Binding("question_mark", "help", "help"),
    Binding("q", "app.quit", "quit"),
)
"""At the end of every screen's keys."""


class ViewerScreen(Screen[None]):
    """A screen that takes the whole window. `NAME` and `HELP` are the title and the text of its help."""

    NAME: ClassVar[str] = ""
    HELP: ClassVar[str] = ""
    BINDINGS: ClassVar[list[BindingType]] = []

    @property
    def viewer(self) -> Viewer:
        from whet.viewer.app import Viewer

        assert isinstance(self.app, Viewer)
        return self.app

    def begin(self, work: Coroutine[Any, Any, None], *, group: str = "default", exclusive: bool = False) -> None:
        """Do this beside what the screen does otherwise, until it is left; see `run_worker`."""
        self.run_worker(self.while_here(work), group=group, exclusive=exclusive)

    async def while_here(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this. Where it was waiting while the screen was left, the widgets it wants to tell may be gone already."""
        try:
            await work
        except NoMatches:
            if self.display:  # which a screen that is being removed is not
                raise

    def action_back(self) -> None:
        """To the screen before; from the first one, nowhere."""
        if len(self.app.screen_stack) > 2:
            self.app.pop_screen()

    def action_help(self) -> None:
        from whet.viewer.screens.help import HelpScreen

        self.app.push_screen(HelpScreen(self.NAME, self.HELP))

    def say(self, text: str, *, wrong: bool = False) -> None:
        """A line that goes away by itself."""
        self.app.notify(plain(text, 500), severity="error" if wrong else "information", markup=False, timeout=6)
