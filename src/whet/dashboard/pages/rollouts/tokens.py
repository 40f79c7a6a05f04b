"""The tokens of one rollout as a page shows them: a window of them, shaded, with one that is selected. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from whet.records.tokens import LIKELY, Colouring, Token, TokenView, colourings, describe, likely_style

WINDOW = 4_000
"""Tokens that a page has at once."""
VERSIONS = 4
"""Colours of policy versions."""


@dataclass(frozen=True, slots=True)
class PageToken:
    """A token and how it is marked."""

    index: int
    text: str
    classes: str
    words: str  # what is known of it, in a line
    breaks: int  # lines that end with it


@dataclass(frozen=True, slots=True)
class PageTurn:
    """A turn, or that part of it which is in the window."""

    heading: str
    note: str
    tokens: list[PageToken]


@dataclass(frozen=True, slots=True)
class TokenPage:
    """A window of a rollout's tokens."""

    turns: list[PageTurn]
    count: int  # of all tokens
    first: int
    last: int  # exclusive
    colouring: Colouring
    colourings: list[Colouring]
    selected: int | None
    facts: list[str]  # of the selected token
    note: str = ""

    @property
    def before(self) -> int | None:
        """The first token of the window before; None where this is the first."""
        return max(0, self.first - WINDOW) if self.first > 0 else None

    @property
    def after(self) -> int | None:
        return self.last if self.last < self.count else None


def token_page(view: TokenView, selected: int | None, by: str) -> TokenPage:
    """The window with the selected token; the first one where none is selected."""
    count = sum(len(turn.tokens) for turn in view.turns)
    chosen = selected if selected is not None and 0 <= selected < count else None
    first = (chosen or 0) // WINDOW * WINDOW
    last = min(count, first + WINDOW)
    ways = colourings(view)
    colouring = next((way for way in ways if way == by), ways[0])
    tokens = [token for turn in view.turns for token in turn.tokens]
    facts = [] if chosen is None else describe(tokens[chosen], chosen, count, view.advantage)
    turns = list(_turns(view, first, last, count))
    return TokenPage(turns, count, first, last, colouring, ways, chosen, facts, view.note or "")


def _turns(view: TokenView, first: int, last: int, count: int) -> Iterator[PageTurn]:
    index = 0
    for turn in view.turns:
        inside = [
            _token(token, at, count, view.advantage)
            for at, token in enumerate(turn.tokens, start=index)
            if first <= at < last
        ]
        index += len(turn.tokens)
        if not inside and not turn.note:
            continue
        given = sum(not token.sampled for token in turn.tokens)
        heading = f"Turn {turn.number}: {given:,} given, {len(turn.tokens) - given:,} sampled"
        if turn.branch:
            heading += "; a new branch, which left out some of the turn before"
        yield PageTurn(heading, turn.note or "", inside)


def _token(token: Token, index: int, count: int, advantage: float | None) -> PageToken:
    text = f"{token.id} " if token.text is None else token.text or "·"
    words = ", ".join(describe(token, index, count, advantage))
    return PageToken(index, text.replace("\n", "⏎"), _classes(token, advantage), words, text.count("\n"))


def _classes(token: Token, advantage: float | None) -> str:
    """Names for every way of shading at once; the page chooses between them by one class further up."""
    if not token.sampled:
        return "given"
    names = [f"p-{likely_style(token.logprob) or 'even'}"] if token.logprob is not None else []
    own = advantage if token.advantage is None else token.advantage
    if own:
        names.append("a-up" if own > 0 else "a-down")
    if token.version is not None:
        names.append(f"v-{token.version % VERSIONS}")
    if token.ratio is not None and not 0.8 <= token.ratio <= 1.25:
        names.append("r-off" if 0.5 <= token.ratio <= 2 else "r-far")
    if token.masked:
        names.append("masked")
    if token.clipped:
        names.append("clipped")
    return " ".join(names)


LEGEND = [(f"p-{style or 'even'}", name) for _, name, style in LIKELY]
"""(class, from which probability on) of the shading by probability."""
