"""The tokens of a rollout (`records/tokens.py`), laid out in coloured lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells
from rich.style import Style

from whet.records.tokens import Colouring, Token, TokenView, likely_style
from whet.system.terminal import NEWLINE
from whet.viewer.widgets.lines import STYLES, plain

GIVEN = Style(dim=True)
VERSIONS = (Style(color="cyan"), Style(color="magenta"), Style(color="yellow"), Style(color="green"))
UNFINISHED = "·"
"""Shown for a token that ends inside a character, or that takes no cells: a combining mark by itself."""


@dataclass(frozen=True, slots=True)
class TokenLine:
    """A line: pieces of tokens, each with the token's index in the rollout; or a heading."""

    pieces: tuple[tuple[int, str], ...] = ()
    heading: str = ""


def token_lines(view: TokenView, width: int) -> list[TokenLine]:
    """The tokens of a rollout in lines of at most `width` cells, a heading above each turn."""
    lines: list[TokenLine] = []
    index = 0
    for turn in view.turns:
        given = sum(not token.sampled for token in turn.tokens)
        heading = f"turn {turn.number}: {given} given, {len(turn.tokens) - given} sampled, from token {turn.start} on"
        if turn.branch:
            heading += "; a new branch: it left out some of the turn before"
        lines.append(TokenLine(heading=heading))
        if turn.note:
            lines.append(TokenLine(heading=turn.note))
        lines += _turn(turn.tokens, index, width)
        index += len(turn.tokens)
        lines.append(TokenLine())
    return lines


def _turn(tokens: Sequence[Token], index: int, width: int) -> list[TokenLine]:
    lines: list[TokenLine] = []
    pieces: list[tuple[int, str]] = []
    used = 0
    for at, token in enumerate(tokens, start=index):
        for text in (part for shown in _shown(token) for part in chop_cells(shown, width) or [UNFINISHED]):
            wide = cell_len(text)
            if pieces and used + wide > width:
                lines.append(TokenLine(tuple(pieces)))
                pieces, used = [], 0
            pieces.append((at, text))
            used += wide
            if text.endswith(NEWLINE):
                lines.append(TokenLine(tuple(pieces)))
                pieces, used = [], 0
    if pieces:
        lines.append(TokenLine(tuple(pieces)))
    return lines


def _shown(token: Token) -> list[str]:
    """The text of a token, in pieces that end where a line ends; its number without a tokenizer."""
    if token.text is None:
        return [f"{token.id} "]
    if not token.text:
        return [UNFINISHED]
    return [plain(part, 200) for part in token.text.replace("\r\n", "\n").splitlines(keepends=True)]


def colour(token: Token, by: Colouring, advantage: float | None) -> Style:
    """The style of one token."""
    if not token.sampled:
        return GIVEN
    if token.masked and by in ("advantage", "ratio"):
        return Style(dim=True, strike=True)
    if by == "logprob":
        return STYLES[likely_style(token.logprob)]
    if by == "advantage":
        advantage = advantage if token.advantage is None else token.advantage
        return Style(color="green" if advantage > 0 else "red") if advantage else Style()
    if by == "ratio":
        return _ratio(token)
    return Style() if token.version is None else VERSIONS[token.version % len(VERSIONS)]


def _ratio(token: Token) -> Style:
    if token.ratio is None:
        return Style()
    style = Style(underline=True) if token.clipped else Style()
    if 0.8 <= token.ratio <= 1.25:
        return style
    return style + Style(color="yellow" if 0.5 <= token.ratio <= 2 else "red")
