"""All rollouts of a group side by side, with their rewards. The columns scroll together."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.events import Resize

from whet.errors import WhetError
from whet.records.rollout_text import candidate_style, number, pieces, reward_style, signed, signed_style
from whet.viewer.listing import Listing
from whet.viewer.screens.base import LAST_KEYS, SearchingScreen
from whet.viewer.widgets.conversation import Folding, lay_out
from whet.viewer.widgets.lines import Part, StyledLine, line, wrapped
from whet.viewer.widgets.panes import Bar, Document, Keys
from whet.viewer.widgets.rollouts import origin_parts, reward_bar

NARROWEST = 36
"""Cells that a column has at least, as long as the window is not narrower itself."""


class GroupColumn(Vertical):
    """One rollout of the group: its head, and what was said."""

    DEFAULT_CSS = """
    GroupColumn { width: 1fr; border-left: solid $panel; }
    GroupColumn.first { border-left: none; }
    GroupColumn.chosen Bar { background: $panel; }
    """

    def compose(self) -> ComposeResult:
        yield Bar([line("")] * 2)
        yield Document(lambda width: [])


class GroupScreen(SearchingScreen):
    """The group of the rollout that the listing is at."""

    NAME: ClassVar[str] = "A group, side by side"
    HELP: ClassVar[str] = """
Each column is one rollout of the same task. At its head: the reward, by how much it differs from the group's mean, the
advantage, and how it ended. The columns scroll in step, from the first answer on.

← →     the rollout before and after; further ones come into the window
Enter   read the rollout by itself
p       the prompt too, or only what came after it
r       reasoning open or folded
t       the tokens of this rollout
y x     copy this rollout, export it or the list
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "choose(-1)", "before"),
        Binding("right", "choose(1)", "after"),
        Binding("enter", "open('rollout')", "open"),
        Binding("p", "prompt", "prompt"),
        Binding("r", "reasoning", "reasoning"),
        Binding("t", "open('tokens')", "tokens"),
        Binding("y", "copy", "copy"),
        Binding("x", "export", "export"),
        Binding("escape", "back", "back"),
        *LAST_KEYS,
    ]

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing)
        self.numbers: list[int] = []
        self._rows: dict[int, Mapping[str, Any] | str] = {}  # a row, or why it cannot be read
        self._first = 0  # of the columns in the window
        self._with_prompt = False
        self._reasoning = False
        self._following = False

    def compose(self) -> ComposeResult:
        yield Bar([line(" reading the group ...")], id="where")
        yield Horizontal(id="sides")
        yield Keys()

    def on_mount(self) -> None:
        self.begin(self._begin(), exclusive=True)

    def on_resize(self, event: Resize) -> None:
        if self.numbers:
            self.begin(self._lay_out(), exclusive=True)

    async def _begin(self) -> None:
        assert self.listing.number is not None
        self.numbers = await asyncio.to_thread(self.listing.store.group, self.listing.number)
        await self._lay_out()

    @property
    def columns(self) -> int:
        """How many rollouts fit into the window."""
        return max(1, min(len(self.numbers), self.size.width // NARROWEST))

    @property
    def chosen(self) -> int:
        """Which rollout of the group the listing is at."""
        return self.numbers.index(self.listing.number) if self.listing.number in self.numbers else 0

    async def _lay_out(self) -> None:
        """Read what comes into the window, and show it."""
        count = self.columns
        self._first = max(0, min(self._first, self.chosen, len(self.numbers) - count))
        self._first = max(self._first, self.chosen - count + 1)
        shown = self.numbers[self._first : self._first + count]
        for number_of in shown:
            if number_of not in self._rows:
                try:
                    self._rows[number_of] = await asyncio.to_thread(self.listing.store.row, number_of)
                except WhetError as error:
                    self._rows[number_of] = str(error)
        holder = self.query_one("#sides", Horizontal)
        sides = list(holder.query(GroupColumn))
        if len(sides) != len(shown):
            await holder.remove_children()
            sides = [GroupColumn(classes="first" if at == 0 else "") for at in range(len(shown))]
            await holder.mount_all(sides)
            for side in sides:
                self._follow(side.query_one(Document))
        for side, number_of in zip(sides, shown, strict=True):
            side.set_class(number_of == self.listing.number, "chosen")
            side.query_one(Bar).show(self._head(number_of))
            side.query_one(Document).show(partial(self._lines, number_of))
            if number_of == self.listing.number:
                side.query_one(Document).focus()
        self.show_status()

    def _lines(self, number_of: int, width: int) -> list[StyledLine]:
        row = self._rows[number_of]
        if isinstance(row, str):
            return list(wrapped(row, width, "bad"))
        shown = [piece for piece in pieces(row) if self._with_prompt or not piece.key.startswith("prompt")]
        folding = Folding(opened={piece.key for piece in shown if piece.folded} if self._reasoning else set())
        folding.whole = {piece.key for piece in shown}
        query = self.listing.search.text if self.listing.search is not None else ""
        return lay_out(shown, width, folding, query=query).lines

    def _mean(self) -> float | None:
        rewards = [head.reward for head in map(self.listing.head, self.numbers) if head.reward is not None]
        return math.fsum(rewards) / len(rewards) if rewards else None

    def _head(self, number_of: int) -> list[StyledLine]:
        head, mean = self.listing.head(number_of), self._mean()
        first: list[Part] = [
            ("▌" if number_of == self.listing.number else " ", "bold"),
            (f"{head.place + 1} ", "bold"),
            (
                f"{number(head.reward) or 'none'} {reward_bar(head.reward)}",
                reward_style(head.reward, self.listing.passed),
            ),
        ]
        if head.reward is not None and mean is not None:
            difference = head.reward - mean
            first.append((f" {difference:+.3f}" if abs(difference) > 1e-9 else " = mean", signed_style(difference)))
        if head.advantage is not None:
            first.append((f" adv. {signed(head.advantage)}", signed_style(head.advantage)))
        tokens = "" if head.output_tokens is None else f" {head.output_tokens:.0f} tokens"
        if head.candidate is not None:
            called = self.listing.candidate(head.candidate)
            first.append((f" candidate {called}", candidate_style(called)))
        ended = (f" {head.error}", "bad") if head.error else (f" {head.stop_condition or ''}", "dim")
        return [line(*first), line(ended, ("  truncated", "middling") if head.truncated else "", (tokens, "dim"))]

    def show_status(self) -> None:
        if not self.numbers:
            return
        head, mean = self.listing.head(self.numbers[0]), self._mean()
        rewards = [each.reward for each in map(self.listing.head, self.numbers) if each.reward is not None]
        parts: list[Part] = [(" group of task", "bold"), f" {head.example_id}", *origin_parts(head)]
        count = self.columns
        shown = f"{self._first + 1}-{self._first + count}" if count > 1 else str(self._first + 1)
        window = f"{shown} of " if count < len(self.numbers) else ""
        parts.append(f"  {window}{len(self.numbers)} rollouts")
        if mean is not None:
            parts.append(f", reward {mean:.3f} from {min(rewards):.3f} to {max(rewards):.3f}")
        self.query_one("#where", Bar).show([line(*parts), line((f" {head.question}", "dim"))])

    # Actions.

    def _follow(self, leading: Document) -> None:
        """Scroll the other documents when this one is scrolled, as far as they go."""

        def follow(y: float) -> None:
            if self._following:
                return
            self._following = True
            for document in self.query(Document):
                if document is not leading:
                    document.scroll_to(y=round(y), animate=False)
            self._following = False

        self.watch(leading, "scroll_y", follow, init=False)

    def on_click(self) -> None:
        focused = self.focused
        for at, side in enumerate(self.query(GroupColumn)):
            if focused is not None and side in focused.ancestors:
                self._choose(self._first + at)

    def _choose(self, at: int) -> None:
        if 0 <= at < len(self.numbers) and self.numbers[at] != self.listing.number:
            self.listing.number = self.numbers[at]
            self.begin(self._lay_out(), exclusive=True)

    def action_choose(self, by: int) -> None:
        self._choose(self.chosen + by)

    def action_prompt(self) -> None:
        self._with_prompt = not self._with_prompt
        self.begin(self._lay_out(), exclusive=True)

    def action_reasoning(self) -> None:
        self._reasoning = not self._reasoning
        self.begin(self._lay_out(), exclusive=True)

    def on_screen_resume(self) -> None:
        if self.numbers:
            self.begin(self._lay_out(), exclusive=True)
