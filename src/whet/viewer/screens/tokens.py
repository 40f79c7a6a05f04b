"""The tokens of one rollout: what was sampled, how likely it was, by which weights, and what training makes of it."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from whet.errors import WhetError
from whet.viewer.decoding import load_decode
from whet.viewer.listing import Listing
from whet.viewer.screens.base import LAST_KEYS
from whet.viewer.screens.searching import SearchingScreen
from whet.viewer.tokens import Decode, TokenView, token_view
from whet.viewer.widgets.bar import Bar
from whet.viewer.widgets.cells import number, reward_style, signed, signed_style
from whet.viewer.widgets.keys import Keys
from whet.viewer.widgets.lines import Line, line
from whet.viewer.widgets.token_lines import LIKELY, colourings, describe
from whet.viewer.widgets.token_text import TokenText

LEGENDS = {
    "advantage": "green: positive, made likelier by training; red: negative; struck: not trained on",
    "ratio": "of the learner's probability to the sampler's: yellow beyond 0.8 to 1.25, red beyond 0.5 to 2; "
    "underlined: clipped; struck: not trained on",
    "version": "a colour for each policy version",
}


class TokensScreen(SearchingScreen):
    """The tokens of the rollout that the listing is at."""

    NAME: ClassVar[str] = "Tokens"
    HELP: ClassVar[str] = """
Grey tokens were given to the model, the others were sampled by it. Below stands what is known of the one at the cursor
or under the mouse: its number, text, logprob, the policy version that sampled it, and in training its advantage.

← → ↑ ↓   another token
n N       next and previous token that had less than 10 % of the probability
c         colour by probability, by advantage, and by what else is known
[ ]       the rollout before and after in the list

Rollouts of training have tokens. Those of an evaluation do not: their model is reached as text.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "step(-1)", "before"),
        Binding("right_square_bracket", "step(1)", "after"),
        Binding("n", "unlikely(1)", "next unlikely"),
        Binding("N", "unlikely(-1)", "previous"),
        Binding("c", "colour", "colour by"),
        Binding("g", "group", "group"),
        Binding("y", "copy", "copy"),
        Binding("x", "export", "export"),
        Binding("escape", "back", "back"),
        *LAST_KEYS,
    ]
    DEFAULT_CSS = """
    TokensScreen #token { height: 2; }
    """

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing)
        self._decode: Decode | None = None
        self._note = ""
        self._without_text = ""  # why tokens have no text
        self._loaded = False

    def compose(self) -> ComposeResult:
        yield Bar([line(" reading ...")], id="where")
        yield TokenText()
        yield Bar([line(""), line("")], id="token")
        yield Keys()

    def on_mount(self) -> None:
        self.query_one(TokenText).focus()
        self._read()

    def _read(self) -> None:
        self.begin(self._load(), exclusive=True, group="read")

    async def _load(self) -> None:
        wanted = self.listing.number
        if wanted is None:
            return
        self._note = ""
        view = TokenView([], None)
        try:
            row = await asyncio.to_thread(self.listing.row, wanted)
            if row.get("turns") and not self._loaded:
                self._loaded = True
                await self._load_decode()
            view = await asyncio.to_thread(token_view, row, self._decode)
        except WhetError as error:
            self._note = str(error)
        if wanted == self.listing.number:
            self.query_one(TokenText).show(view)
            self.show_status()

    async def _load_decode(self) -> None:
        try:
            self._decode = await asyncio.to_thread(load_decode, self.listing.store.source)
        except WhetError as error:
            self._without_text = f"tokens are shown as numbers: {error}"

    def show_status(self) -> None:
        if self.listing.number is None:
            return
        text = self.query_one(TokenText)
        head = self.listing.head(self.listing.number)
        place = f" tokens of rollout {self.listing.position() + 1:,} of {len(self.listing.heads):,}"
        parts: list[str | tuple[object, str]] = [(place, "bold"), "  reward "]
        parts.append((number(head.reward) or "none", reward_style(head.reward, self.listing.passed)))
        if head.advantage is not None:
            parts += ["  advantage ", (signed(head.advantage), signed_style(head.advantage))]
        note = self._note or text.view.note or ""
        lines = [line(*parts), line((f" {note}", "middling")) if note else self._legend()]
        if self._without_text:
            lines.append(line((f" {self._without_text}", "middling")))
        self.query_one("#where", Bar).show(lines)

    def _legend(self) -> Line:
        text = self.query_one(TokenText)
        if text.colouring == "logprob":
            scale = [part for _, name, style in LIKELY for part in ((name, style), "  ")]
            return line((" colours", "bold"), ": probability of at least ", *scale)
        return line((" colours", "bold"), f": {text.colouring}; {LEGENDS[text.colouring]}")

    def on_token_text_looked(self, event: TokenText.Looked) -> None:
        text = self.query_one(TokenText)
        if event.place < 0:
            self.query_one("#token", Bar).show([line(""), line("")])
            return
        words = describe(text.tokens[event.place], event.place, len(text.tokens), text.view.advantage)
        lines = [line(" " + ", ".join(words[:3])), line(" " + ", ".join(words[3:]))]
        self.query_one("#token", Bar).show(lines)

    # What a person asks for.

    def action_step(self, by: int) -> None:
        number_of = self.listing.step(by)
        if number_of is not None:
            self.listing.number = number_of
            self._read()

    def action_unlikely(self, by: int) -> None:
        self.query_one(TokenText).next_unlikely(by)

    def action_colour(self) -> None:
        text = self.query_one(TokenText)
        ways = colourings(text.view)
        at = ways.index(text.colouring) + 1 if text.colouring in ways else 0
        text.colour_by(ways[at % len(ways)])
        self.show_status()

    def on_screen_resume(self) -> None:
        if self._loaded:
            self._read()
