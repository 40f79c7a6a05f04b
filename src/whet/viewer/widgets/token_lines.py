"""Tokens laid out in lines, coloured by what is asked: how likely they were, their advantage, ratio, version. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len, chop_cells
from rich.style import Style

from whet.system.terminal import NEWLINE
from whet.viewer.tokens import Token, TokenView
from whet.viewer.widgets.lines import STYLES, plain

Colouring = Literal["logprob", "advantage", "ratio", "version"]

GIVEN = Style(dim=True)
LIKELY = (
    (0.9, "90 %", "likely"),
    (0.5, "50 %", ""),
    (0.1, "10 %", "unlikely"),
    (0.01, "1 %", "rare"),
    (0.0, "less", "rarest"),
)
"""From a probability on: its name, and the name of the style of a sampled token that was as likely."""
VERSIONS = (Style(color="cyan"), Style(color="magenta"), Style(color="yellow"), Style(color="green"))
UNFINISHED = "·"
"""Stands for a token that ends inside a character."""


@dataclass(frozen=True, slots=True)
class TokenLine:
    """A line: pieces of tokens, each with the token's place in the rollout; or a heading."""

    pieces: tuple[tuple[int, str], ...] = ()
    heading: str = ""


def token_lines(view: TokenView, width: int) -> list[TokenLine]:
    """The tokens of a rollout in lines of at most `width` cells, a heading above each turn."""
    lines: list[TokenLine] = []
    place = 0
    for turn in view.turns:
        given = sum(not token.sampled for token in turn.tokens)
        heading = f"turn {turn.number}: {given} given, {len(turn.tokens) - given} sampled, from token {turn.start} on"
        if turn.branch:
            heading += "; a new branch: it left out some of the turn before"
        lines.append(TokenLine(heading=heading))
        if turn.note:
            lines.append(TokenLine(heading=turn.note))
        lines += _turn(turn.tokens, place, width)
        place += len(turn.tokens)
        lines.append(TokenLine())
    return lines


def _turn(tokens: Sequence[Token], place: int, width: int) -> list[TokenLine]:
    lines: list[TokenLine] = []
    pieces: list[tuple[int, str]] = []
    used = 0
    for at, token in enumerate(tokens, start=place):
        for text in (part for shown in _shown(token) for part in chop_cells(shown, width)):
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
        return likely(token.logprob)
    if by == "advantage":
        advantage = advantage if token.advantage is None else token.advantage
        return Style(color="green" if advantage > 0 else "red") if advantage else Style()
    if by == "ratio":
        return _ratio(token)
    return Style() if token.version is None else VERSIONS[token.version % len(VERSIONS)]


def likely(logprob: float | None) -> Style:
    if logprob is None or math.isnan(logprob):
        return Style()
    probability = math.exp(min(0.0, logprob))
    return STYLES[next(style for least, _, style in LIKELY if probability >= least)]


def _ratio(token: Token) -> Style:
    if token.ratio is None:
        return Style()
    style = Style(underline=True) if token.clipped else Style()
    if 0.8 <= token.ratio <= 1.25:
        return style
    return style + Style(color="yellow" if 0.5 <= token.ratio <= 2 else "red")


def colourings(view: TokenView) -> list[Colouring]:
    """What there is to colour by."""
    found: list[Colouring] = ["logprob"]
    if view.advantage is not None:
        found.append("advantage")
    tokens = list(view.tokens)
    if any(token.ratio is not None for token in tokens):
        found.append("ratio")
    if len({token.version for token in tokens if token.version is not None}) > 1:
        found.append("version")
    return found


def describe(token: Token, place: int, count: int, advantage: float | None) -> list[str]:
    """What is known of a token, in a few words each."""
    text = "unknown text" if token.text is None else "the middle of a character" if not token.text else repr(token.text)
    words = [f"token {place + 1} of {count}", f"id {token.id}", text]
    if not token.sampled:
        return [*words, "given, not sampled"]
    if token.logprob is not None:
        words.append(f"logprob {token.logprob:.4f} ({math.exp(min(0.0, token.logprob)):.2%})")
    if token.version is not None:
        words.append(f"policy version {token.version}")
    if token.advantage is not None:
        words.append(f"advantage {token.advantage:+.3f} (its turn's own)")
    elif advantage is not None:
        words.append(f"advantage {advantage:+.3f}")
    if token.learner_logprob is not None:
        words.append(f"learner's logprob {token.learner_logprob:.4f}")
    if token.ratio is not None:
        words.append(f"ratio {token.ratio:.3f}")
    words += [name for name, is_so in (("masked", token.masked), ("clipped", token.clipped)) if is_so]
    return words
