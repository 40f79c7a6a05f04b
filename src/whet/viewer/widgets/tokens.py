"""The tokens of a rollout: what was sampled, how likely it was, by which weights; laid out in coloured lines.

Rollouts of training hold their tokens (`rl/storage/rollout_log.py`); those of an evaluation do not, and the view says
so. A turn shows what is new in it: the end of its prompt that the turns before did not hold, and what was sampled.

    turn 1   "prompt_start": 0, prompt_ids [a b], completion_ids [c d]      a b c d
    turn 2   "prompt_start": 4, prompt_ids [e],   completion_ids [f]        e f
    turn 3   "prompt_start": 2, prompt_ids [x],   completion_ids [y]        x y, a new branch: it left out c d e f

A turn may also have values of the learner, each as long as `completion_ids`: `learner_logprobs`, `ratio` (of the
learner's probability to the sampler's), `masked` (left out of the loss) and `clipped`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.cells import cell_len, chop_cells
from rich.style import Style

from whet.system.terminal import NEWLINE
from whet.viewer.sources import RunSource
from whet.viewer.widgets.lines import STYLES, plain

Decode = Callable[[Sequence[int]], Sequence[str]]
"""From token ids to the text of each, "" where a character ends in a later one: `Vocabulary(model).texts`, of
`inference/rendering/vocabulary.py`."""

NO_TOKENS = "no tokens are kept in an evaluation; a training run keeps those of its rollouts"
NO_TURNS = "the tokens of this rollout are not known: its model's client does not report them"


@dataclass(frozen=True, slots=True)
class Token:
    """One token in the model's context. What is not known is None."""

    id: int
    text: str | None  # as written, not escaped; None without a tokenizer
    sampled: bool  # by the policy; else it was given
    logprob: float | None = None  # natural, the sampler's
    version: int | None = None  # policy version that sampled it
    learner_logprob: float | None = None
    ratio: float | None = None
    masked: bool | None = None
    clipped: bool | None = None
    advantage: float | None = None  # of its turn alone; None: the rollout's


@dataclass(frozen=True, slots=True)
class TokenTurn:
    """What one turn adds to the context."""

    number: int  # from 1
    start: int  # tokens of the context before these
    branch: bool  # whether it left out something that the turn before had in its context
    tokens: list[Token]
    note: str | None = None  # why there are none


@dataclass(frozen=True, slots=True)
class TokenView:
    """The tokens of a rollout."""

    turns: list[TokenTurn]
    advantage: float | None
    note: str | None = None  # why there are no turns

    @property
    def tokens(self) -> Iterator[Token]:
        """Of all turns, in order."""
        for turn in self.turns:
            yield from turn.tokens


def token_view(row: Mapping[str, Any], decode: Decode | None = None) -> TokenView:
    """The tokens of a row; `decode` gives them their text. What is of an unexpected type or length is left out."""
    turns = row.get("turns")
    advantage = _number(row.get("advantage"))
    if not isinstance(turns, list):
        return TokenView([], advantage, NO_TOKENS)
    if not any(isinstance(turn, Mapping) for turn in turns):
        return TokenView([], advantage, NO_TURNS)
    return TokenView(list(_turns(turns, decode)), advantage)


def _turns(turns: Sequence[Any], decode: Decode | None) -> Iterator[TokenTurn]:
    context = 0
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, Mapping):
            yield TokenTurn(number, context, False, [], "the tokens of this turn are not known")
            continue
        start = turn.get("prompt_start")
        start = start if isinstance(start, int) and not isinstance(start, bool) else 0
        given = _given(_ids(turn.get("prompt_ids")), decode)
        sampled = _sampled(turn, decode)
        yield TokenTurn(number, start, number > 1 and start < context, given + sampled)
        context = start + len(given) + len(sampled)


def _given(ids: list[int], decode: Decode | None) -> list[Token]:
    return [Token(id, text, sampled=False) for id, text in zip(ids, _texts(ids, decode), strict=True)]


def _sampled(turn: Mapping[str, Any], decode: Decode | None) -> list[Token]:
    ids = _ids(turn.get("completion_ids"))
    versions = _versions(turn.get("policy_version"), len(ids))
    mask, advantage = turn.get("completion_mask"), _number(turn.get("advantage"))
    return [
        Token(
            id=id,
            text=text,
            sampled=not isinstance(mask, list) or bool(_at(mask, index)),
            logprob=_number(_at(turn.get("completion_logprobs"), index)),
            version=_at(versions, index),
            learner_logprob=_number(_at(turn.get("learner_logprobs"), index)),
            ratio=_number(_at(turn.get("ratio"), index)),
            masked=_flag(_at(turn.get("masked"), index)),
            clipped=_flag(_at(turn.get("clipped"), index)),
            advantage=advantage,
        )
        for index, (id, text) in enumerate(zip(ids, _texts(ids, decode), strict=True))
    ]


def _texts(ids: list[int], decode: Decode | None) -> Sequence[str | None]:
    return [None] * len(ids) if decode is None else decode(ids)


def _versions(runs: Any, length: int) -> list[int]:
    """A version for each token, from runs of equal version; at most `length`."""
    versions: list[int] = []
    for run in runs if isinstance(runs, list) else ():
        match run:
            case [int(version), int(count)]:
                versions += [version] * min(count, length - len(versions))
    return versions


def _ids(value: Any) -> list[int]:
    return [id for id in value if isinstance(id, int)] if isinstance(value, list) else []


def _at(values: Any, index: int) -> Any:
    return values[index] if isinstance(values, list) and index < len(values) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def load_decode(source: RunSource) -> Decode:
    """How the tokens of a run's rollouts are turned into text: by the tokenizer in the run, or by its model's.

    Raises `ModelLoadError` where it is not on this machine or cannot be read, `MissingExtraError` without the library.
    """
    from whet.inference.rendering.vocabulary import TOKENIZER, Vocabulary

    trained = source.rollouts.parent / "model"
    return Vocabulary(str(trained) if (trained / TOKENIZER).is_file() else source.model).texts


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


def describe(token: Token, index: int, count: int, advantage: float | None) -> list[str]:
    """What is known of a token, in a few words each."""
    text = "unknown text" if token.text is None else "the middle of a character" if not token.text else repr(token.text)
    words = [f"token {index + 1} of {count}", f"id {token.id}", text]
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
