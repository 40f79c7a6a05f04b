"""What the viewer's screens share: the way back and the keys; for screens of one run also search, copy and export.

A search that was started on one screen continues on the next one of the same list.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer
from textual.worker import WorkType

from whet.display.lines import plain, styled
from whet.errors import WhetError
from whet.records.export import markdown, save, save_instead, suggested_name, why_not
from whet.records.listing import Listing, Search
from whet.viewer.widgets import Bar, Document, Prompt

Work = Callable[[], Coroutine[None, None, object]]


class ViewerScreen(Screen[None], inherit_bindings=False):
    """A screen that takes the whole window."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "keys", "all keys"),
        Binding("escape", "back", "back", show=False),
        Binding("q", "app.quit", "quit"),
    ]

    def compose(self) -> ComposeResult:
        yield Bar()
        yield self.body()
        yield Prompt()
        yield Footer()

    @abstractmethod
    def body(self) -> Widget:
        """What is between the status lines and the keys."""

    def status(self, *lines: Text) -> None:
        self.query_one(Bar).show(*lines)

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    def begin(self, work: Work, group: str, *, exclusive: bool = False, until_quit: bool = False) -> None:
        """Run this concurrently until the screen is left, or the application."""
        guarded: WorkType[None] = partial(self.while_here, work)
        (self.app if until_quit else self).run_worker(guarded, group=group, exclusive=exclusive)

    async def while_here(self, work: Work) -> None:
        """Run this, and say what goes wrong. If the screen was left meanwhile, the widgets to update may be gone."""
        try:
            await work()
        except WhetError as error:
            self.say(str(error), wrong=True)
        except NoMatches:
            if self.display:  # which a screen that is being removed is not
                raise

    def action_keys(self) -> None:
        """List all keys, the screen's own first; the one that is chosen is pressed."""
        active = sorted(self.active_bindings.values(), key=lambda one: one.node is not self)
        keys = [one.binding for one in active if one.binding.description]
        answers = [styled((f"{self.app.get_key_display(one):>10}  ", "bold"), one.description) for one in keys]
        self.prompt.choose("Keys", answers, 0, lambda at: self.app.simulate_key(keys[at].key))

    def action_back(self) -> None:
        """Take the question away; else to the screen before; from the first one, nowhere."""
        if self.prompt.display:
            self.prompt.close()
        elif len(self.app.screen_stack) > 2:
            self.app.pop_screen()

    def say(self, text: str, *, wrong: bool = False) -> None:
        """Show a line that disappears by itself."""
        self.app.notify(plain(text, 500), severity="error" if wrong else "information", markup=False, timeout=6)


class ListingScreen(ViewerScreen):
    """A screen that shows something of a `Listing`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "search"),
        Binding("n", "match(1)", "next"),
        Binding("N", "match(-1)", "previous", show=False),
        Binding("g", "open('group')", "group"),
        Binding("t", "open('tokens')", "tokens"),
        Binding("y", "copy", "copy as Markdown", show=False),
        Binding("x", "export", "export to a file", show=False),
    ]

    def __init__(self, listing: Listing) -> None:
        super().__init__()
        self.listing = listing

    def action_open(self, name: str) -> None:
        """Open another screen of this list."""
        from whet.viewer.rollout import GroupScreen, RolloutScreen, TokenScreen  # which know this module

        screens: dict[str, type[RowScreen]]
        screens = {"rollout": RolloutScreen, "group": GroupScreen, "tokens": TokenScreen}
        if self.listing.number is not None and not isinstance(self, screens[name]):
            self.app.push_screen(screens[name](self.listing))

    def show_status(self) -> None:
        """Update the status lines, because the search has progressed for example. Overridden by the screens."""

    def shown_match(self) -> None:
        """Show the current rollout, and in it what was searched for. Overridden by the screens."""

    # Search.

    def action_search(self) -> None:
        def begin(text: str) -> None:
            self.stop_search()
            self.listing.search = Search(text) if text else None
            if self.listing.search is not None:
                self.begin(partial(self._search, self.listing.search), "search", until_quit=True)
            self.refresh_bindings()
            self.shown_match()

        self.prompt.ask("Search in all that was said", self.listing.query, begin)

    async def _search(self, search: Search) -> None:
        """Search until the end or until it is stopped; the first match is shown at once."""
        within = self.listing.heads.numbers if self.listing.narrowed else None
        pieces = self.listing.store.search(search.text, within)
        try:
            # Fails where the file was changed meanwhile.
            while not search.cancelled and (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                is_first = not search.matches and bool(piece.numbers)
                search.matches.update(piece.numbers[len(search.matches) :])
                search.done = piece.done / max(1, piece.total)
                if is_first and self.listing.number not in search.matches:
                    self._shown_screen().action_match(1)
                self._shown_screen().show_status()
        finally:
            search.running = False
            self._shown_screen().show_status()

    def _shown_screen(self) -> ListingScreen:
        """The current screen, if it shows this list: a search continues from one screen to the next."""
        screen = self.app.screen
        return screen if isinstance(screen, ListingScreen) and screen.listing is self.listing else self

    def stop_search(self) -> bool:
        """Stop a running search and keep its matches; returns whether one was running."""
        search = self.listing.search
        if search is None or not search.running:
            return False
        search.cancelled, search.running = True, False
        self.show_status()
        return True

    def action_match(self, by: int) -> None:
        match = self.listing.next_match(by)
        if match is not None:
            self.listing.number = match
            self.shown_match()

    def action_back(self) -> None:
        if self.prompt.display or not self.stop_search():
            super().action_back()

    # Copy and export.

    def action_copy(self) -> None:
        self.begin(self._copy, "copy")

    async def _copy(self) -> None:
        """Copy the current rollout as Markdown to the terminal's clipboard, or to a file where that is impossible."""
        if self.listing.number is None:
            return
        text = markdown(await asyncio.to_thread(self.listing.store.row, self.listing.number))
        reason = why_not(text, os.environ)
        if reason is None:
            self.app.copy_to_clipboard(text)
            self.say(f"copied {len(text):,} characters, as Markdown. If nothing can be pasted, x writes a file.")
        else:
            self.say(f"{reason}; the rollout is in {save_instead(text)}")

    def exported(self) -> Sequence[int]:
        """The numbers of what is exported from this screen: the current rollout. Overridden by the list."""
        return [] if self.listing.number is None else [self.listing.number]

    def action_export(self) -> None:
        numbers = self.exported()

        def begin(file: str) -> None:
            if file:
                self.say(f"writing {file} ...")
                self.begin(partial(self._export, numbers, Path(file)), "export")

        what = "this rollout" if len(numbers) == 1 else f"all {len(numbers):,} rollouts listed"
        self.prompt.ask(f"Write {what} to which .md or .jsonl", suggested_name(self.listing.store, numbers), begin)

    async def _export(self, numbers: Sequence[int], file: Path) -> None:
        stopped = False

        try:
            written, left_out = await asyncio.to_thread(
                save, self.listing.store, numbers, file, stopped=lambda: stopped
            )
        finally:
            stopped = True  # the thread would go on when this is cancelled
        rest = f"; {left_out:,} lines that are no rollouts were left out" if left_out else ""
        self.say(f"wrote {written:,} rollouts to {file}{rest}")


class RowScreen(ListingScreen):
    """A screen of the rollout that the listing is at, and maybe of more; `rows` has what was read."""

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing)
        self.rows: dict[int, Mapping[str, Any] | str] = {}  # a row, or why it cannot be read

    @property
    def shown(self) -> Sequence[int]:
        """The rollouts in the window."""
        return [] if self.listing.number is None else [self.listing.number]

    def body(self) -> Widget:
        return Document(self.lines, self.clicked)

    @property
    def document(self) -> Document:
        return self.query_one(Document)

    @abstractmethod
    def lines(self, width: int) -> list[Text]:
        """What the rows of `shown` look like in `width` cells."""

    def clicked(self, key: str) -> None:
        """A piece of the document was clicked. Overridden by the screens."""

    async def show_rows(self) -> None:
        """Show the rows of `shown`. Overridden by the screens."""
        self.document.show()
        self.show_status()

    def read(self) -> None:
        """Read the rows that are to be shown, and show them."""
        self.begin(self._read, "read", exclusive=True)

    async def _read(self) -> None:
        shown = self.shown
        self.rows = {one: row for one, row in self.rows.items() if one in shown}
        for one in shown:
            if one not in self.rows:
                try:
                    self.rows[one] = await asyncio.to_thread(self.listing.store.row, one)
                except WhetError as error:
                    self.rows[one] = str(error)
        await self.show_rows()

    def on_screen_resume(self) -> None:
        self.read()

    def shown_match(self) -> None:
        self.read()

    def action_step(self, by: int) -> None:
        following = self.listing.step(by)
        if following is not None:
            self.listing.number = following
            self.read()
