"""Search, copy and export, which every screen of one run has: what was searched in one goes on in the next."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual.binding import BindingType

from whet.errors import WhetError
from whet.viewer.listing import Listing, Search
from whet.viewer.screens.ask import Ask
from whet.viewer.screens.base import ViewerScreen
from whet.viewer.screens.saving import copy_rollout, export_rollouts
from whet.viewer.widgets.lines import Line, line


class SearchingScreen(ViewerScreen):
    """A screen that shows something of a `Listing`."""

    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, listing: Listing) -> None:
        super().__init__()
        self.listing = listing

    # To be said by the screen.

    def show_status(self) -> None:
        """Say again where one is: the search has gone on."""

    def shown_match(self, number: int) -> None:
        """Show the rollout `number`, which the search found; `listing.number` is it already."""

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
        """Read on until all is searched or somebody stops it; the first rollout found is shown at once."""
        within = self.listing.heads.numbers if self.listing.narrowed else None
        pieces = self.listing.store.search(search.text, within)
        first = True
        while not search.cancelled:
            try:
                piece = await asyncio.to_thread(next, pieces, None)
            except WhetError as error:  # the file was changed meanwhile
                self.say(str(error), wrong=True)
                break
            if piece is None:
                break
            search.take(piece.numbers, piece.done, piece.total)
            screen = self._shown_screen()
            if screen is not None:
                if first and search.numbers:
                    first = False
                    if self.listing.number not in search.found:
                        screen.action_match(1)
                screen.show_status()
        search.running = False
        screen = self._shown_screen()
        if screen is not None:
            screen.show_status()

    def _shown_screen(self) -> SearchingScreen | None:
        """The screen that is looked at, where it shows this list: a search goes on from one to the other."""
        screen = self.app.screen
        return screen if isinstance(screen, SearchingScreen) and screen.listing is self.listing else None

    def stop_search(self) -> bool:
        """End a search that is still going on, keeping what it found; whether there was one."""
        search = self.listing.search
        if search is None or not search.running:
            return False
        search.cancelled = True
        search.running = False
        self.show_status()
        return True

    def search_status(self) -> list[Line]:
        """A line about the search, if there is one."""
        search = self.listing.search
        if search is None:
            return []
        where = f" in {len(search.numbers):,} rollouts"
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

    def action_group(self) -> None:
        if self.listing.number is not None:
            self.viewer.open_group(self.listing)

    def action_tokens(self) -> None:
        if self.listing.number is not None:
            self.viewer.open_tokens(self.listing)

    def action_copy(self) -> None:
        self.begin(copy_rollout(self, self.listing), group="copy")

    def action_export(self) -> None:
        self.begin(export_rollouts(self, self.listing), group="export")
