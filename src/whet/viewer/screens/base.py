"""What the viewer's screens share: the way back and help; for screens of one run also search, copy and export.

A search that was started on one screen continues on the next one of the same list.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from textual.app import App
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.screen import Screen

from whet.errors import WhetError
from whet.viewer.export import Form, markdown, save, save_instead, suggested_name, why_not
from whet.viewer.listing import Listing, Search
from whet.viewer.screens.dialogs import Ask, Choose, HelpScreen
from whet.viewer.widgets.lines import StyledLine, line, plain

LAST_KEYS: tuple[Binding, ...] = (
    Binding("question_mark", "help", "help"),
    Binding("q", "app.quit", "quit"),
)
"""At the end of every screen's keys."""


ScreenName = Literal["rollouts", "rollout", "group", "tokens"]


class ViewerApp(App[None]):
    """The application as its screens know it: it opens one of them from another."""

    @abstractmethod
    def open_screen(self, name: ScreenName, listing: Listing) -> None: ...


class ViewerScreen(Screen[None]):
    """A screen that takes the whole window. `NAME` and `HELP` are the title and the text of its help."""

    NAME: ClassVar[str] = ""
    HELP: ClassVar[str] = ""
    BINDINGS: ClassVar[list[BindingType]] = []

    @property
    def viewer(self) -> ViewerApp:
        assert isinstance(self.app, ViewerApp)
        return self.app

    def begin(self, work: Coroutine[Any, Any, None], *, group: str = "default", exclusive: bool = False) -> None:
        """Run this concurrently until the screen is left; see `run_worker`."""
        self.run_worker(self.while_here(work), group=group, exclusive=exclusive)

    async def while_here(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this, and say what goes wrong. If the screen was left meanwhile, the widgets to update may be gone."""
        try:
            await work
        except WhetError as error:
            self.say(str(error), wrong=True)
        except NoMatches:
            if self.display:  # which a screen that is being removed is not
                raise

    def action_back(self) -> None:
        """To the screen before; from the first one, nowhere."""
        if len(self.app.screen_stack) > 2:
            self.app.pop_screen()

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(self.NAME, self.HELP))

    def say(self, text: str, *, wrong: bool = False) -> None:
        """Show a line that disappears by itself."""
        self.app.notify(plain(text, 500), severity="error" if wrong else "information", markup=False, timeout=6)


async def copy_rollout(screen: ViewerScreen, listing: Listing) -> None:
    """Copy the current rollout as Markdown to the terminal's clipboard, or to a file where that is impossible."""
    if listing.number is None:
        return
    text = markdown(await asyncio.to_thread(listing.store.row, listing.number))
    reason = why_not(text, os.environ)
    if reason is None:
        screen.app.copy_to_clipboard(text)
        screen.say(f"copied {len(text):,} characters, as Markdown. If nothing can be pasted, x writes a file.")
        return
    try:
        path = save_instead(text)
    except OSError as error:
        screen.say(f"{reason}, and no file can be written ({error.strerror})", wrong=True)
        return
    screen.say(f"{reason}; the rollout is in {path}")


async def export_rollouts(screen: ViewerScreen, listing: Listing) -> None:
    """Ask what to export, in which format and where; then write it and report progress."""
    number, count = listing.number, len(listing.heads)
    if number is None:
        return
    answers = [
        ("this rollout, Markdown", ".md"),
        ("this rollout, as it stands in the file", ".jsonl"),
        (f"all {count:,} listed, Markdown", ".md"),
        (f"all {count:,} listed, as they stand in the file", ".jsonl"),
    ]
    answer = await screen.app.push_screen_wait(Choose("Export", answers))
    if answer is None:
        return
    form: Form = "md" if answer in (0, 2) else "jsonl"
    one = answer < 2
    name = suggested_name(listing.store, number if one else None, form)
    file = await screen.app.push_screen_wait(Ask("Write to which file", name))
    if not file:
        return
    numbers = [number] if one else list(listing.heads.numbers)
    stopped = False

    def on_progress(done: int, total: int) -> None:
        if total > 1000 and done % 1000 == 0:
            screen.app.call_from_thread(screen.say, f"writing {done:,} of {total:,}")

    try:
        written, left_out = await asyncio.to_thread(
            save, listing.store, numbers, form, Path(file), on_progress=on_progress, stopped=lambda: stopped
        )
    finally:
        stopped = True  # the thread would go on when this is cancelled
    rest = f"; {left_out:,} lines that are no rollouts were left out" if left_out else ""
    screen.say(f"wrote {written:,} rollouts to {file}{rest}" if written != 1 else f"wrote the rollout to {file}{rest}")


class SearchingScreen(ViewerScreen):
    """A screen that shows something of a `Listing`."""

    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, listing: Listing) -> None:
        super().__init__()
        self.listing = listing

    def show_status(self) -> None:
        """Update the status lines, because the search has progressed for example. Overridden by the screens."""

    def shown_match(self, number: int) -> None:
        """Show the match `number`, which `listing.number` is already set to. Overridden by the screens."""

    # Search.

    def action_search(self) -> None:
        search = self.listing.search

        def begin(text: str | None) -> None:
            if text is None:
                return
            self.stop_search()
            self.listing.search = None
            if text:
                self.listing.search = Search(text)
                self.app.run_worker(self.while_here(self._search(self.listing.search)))
            self.refresh_bindings()
            self.show_status()

        self.app.push_screen(Ask("Search in all that was said", search.text if search is not None else ""), begin)

    async def _search(self, search: Search) -> None:
        """Search until the end or until it is stopped; the first match is shown at once."""
        within = self.listing.heads.numbers if self.listing.narrowed else None
        pieces = self.listing.store.search(search.text, within)
        try:
            # Fails where the file was changed meanwhile.
            while not search.cancelled and (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                is_first = not search.found and bool(piece.numbers)
                search.take(piece)
                screen = self._shown_screen()
                if screen is not None:
                    if is_first and self.listing.number not in search.found:
                        screen.action_match(1)
                    screen.show_status()
        finally:
            search.running = False
            screen = self._shown_screen()
            if screen is not None:
                screen.show_status()

    def _shown_screen(self) -> SearchingScreen | None:
        """The current screen, if it shows this list: a search continues from one screen to the next."""
        screen = self.app.screen
        return screen if isinstance(screen, SearchingScreen) and screen.listing is self.listing else None

    def stop_search(self) -> bool:
        """Stop a running search and keep its matches; returns whether one was running."""
        search = self.listing.search
        if search is None or not search.running:
            return False
        search.cancelled = True
        search.running = False
        self.show_status()
        return True

    def search_status(self) -> list[StyledLine]:
        """A line about the search, if there is one."""
        search = self.listing.search
        if search is None:
            return []
        where = f" in {len(search.found):,} rollouts"
        state = "  stopped" if search.cancelled else ""
        if search.running:
            state = f"  searching: {search.done / max(1, search.total):.0%}, Esc stops"
        return [line((" /", "bold"), (search.text, "name"), where, (state, "middling"))]

    def action_match(self, by: int) -> None:
        number = self.listing.next_match(by)
        if number is not None:
            self.listing.number = number
            self.shown_match(number)
            self.show_status()

    # The other screens.

    def action_open(self, screen: ScreenName) -> None:
        if self.listing.number is not None:
            self.viewer.open_screen(screen, self.listing)

    def action_stop_or_back(self) -> None:
        if not self.stop_search():
            self.action_back()

    def action_copy(self) -> None:
        self.begin(copy_rollout(self, self.listing), group="copy")

    def action_export(self) -> None:
        self.begin(export_rollouts(self, self.listing), group="export")


class RolloutView(SearchingScreen):
    """A screen of the rollout that the listing is at; `shown` is the one whose row is shown."""

    shown: int | None = None

    async def show_row(self, row: Mapping[str, Any], problem: str) -> None:
        """Show this row of the rollout `shown`, or why it cannot be read. Overridden by the screens."""

    def read(self) -> None:
        """Read the row and show it."""
        self.begin(self._load(), exclusive=True, group="read")

    async def _load(self) -> None:
        wanted = self.listing.number
        if wanted is None:
            return
        row, problem = {}, ""
        try:
            row = await asyncio.to_thread(self.listing.store.row, wanted)
        except WhetError as error:
            problem = str(error)
        if wanted == self.listing.number:
            self.shown = wanted
            await self.show_row(row, problem)

    def on_screen_resume(self) -> None:
        if self.shown is not None and self.shown != self.listing.number:
            self.read()

    def shown_match(self, number: int) -> None:
        self.read()

    def action_step(self, by: int) -> None:
        number = self.listing.step(by)
        if number is not None:
            self.listing.number = number
            self.read()
