"""The tokens of a rollout: what was sampled, how likely it was, by which weights. Pure.

Rollouts of training hold their tokens (`rl/storage/run_directory.py`); those of an evaluation do not, and the view says
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

from whet.records.entries import as_float
from whet.system.terminal import NEWLINE

Decode = Callable[[Sequence[int]], Sequence[str]]
"""From token ids to the text of each, "" where a character ends in a later one: `run_decoder` of
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

    @property
    def shown(self) -> list[str]:
        """The text, in lines where it has several; its number without a tokenizer, `·` where it is no character."""
        if self.text is None:
            return [f"{self.id} "]
        lines = (self.text or "·").replace("\r\n", "\n").split("\n")
        return [*(f"{line}{NEWLINE}" for line in lines[:-1]), lines[-1]]


@dataclass(frozen=True, slots=True)
class TokenTurn:
    """What one turn adds to the context."""

    number: int  # from 1
    start: int  # tokens of the context before these
    branch: bool  # whether it left out something that the turn before had in its context
    tokens: list[Token]
    note: str | None = None  # why there are none

    @property
    def heading(self) -> str:
        """What the turn adds, in a line."""
        given = sum(not token.sampled for token in self.tokens)
        text = f"turn {self.number}: {given} given, {len(self.tokens) - given} sampled, from token {self.start} on"
        return f"{text}; a new branch: it left out some of the turn before" if self.branch else text


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
    return as_float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


Colouring = Literal["logprob", "advantage", "ratio", "version"]

LIKELY = (
    (0.9, "90 %", "likely"),
    (0.5, "50 %", ""),
    (0.1, "10 %", "unlikely"),
    (0.01, "1 %", "rare"),
    (0.0, "less", "rarest"),
)
"""From a probability on: its name, and the name of the style of a sampled token that was as likely."""


UNLIKELY = math.log(0.1)
"""The log probability below which a sampled token counts as unlikely."""
LEGENDS = {
    "advantage": "green: positive, made likelier by training; red: negative; struck: not trained on",
    "ratio": "of the learner's probability to the sampler's: yellow beyond 0.8 to 1.25, red beyond 0.5 to 2; "
    "underlined: clipped; struck: not trained on",
    "version": "a colour for each policy version",
}
"""What the colours of a way to colour mean, other than by probability."""


def likely_style(logprob: float | None) -> str:
    """The name of the style of a sampled token with this log probability; "" where it is not known."""
    if logprob is None or math.isnan(logprob):
        return ""
    probability = math.exp(min(0.0, logprob))
    return next(style for least, _, style in LIKELY if probability >= least)


VERSIONS = 4
"""Colours of policy versions."""


def token_style(token: Token, by: Colouring, advantage: float | None) -> str:
    """The name of the style of one token; `advantage`: the rollout's. "" where there is nothing to mark."""
    if not token.sampled:
        return "given"
    if token.masked and by in ("advantage", "ratio"):
        return "masked"
    if by == "logprob":
        return likely_style(token.logprob)
    if by == "version":
        return "" if token.version is None else f"version-{token.version % VERSIONS}"
    if by == "advantage":
        own = (advantage if token.advantage is None else token.advantage) or 0.0
        return "up" if own > 0 else "down" if own < 0 else ""
    far = "" if token.ratio is None or 0.8 <= token.ratio <= 1.25 else "off" if 0.5 <= token.ratio <= 2 else "far"
    return " ".join(filter(None, [far, "clipped" if token.clipped else ""]))


def colourings(view: TokenView) -> list[Colouring]:
    """What there is to colour by."""
    names: list[Colouring] = ["logprob"]
    if view.advantage is not None:
        names.append("advantage")
    tokens = list(view.tokens)
    if any(token.ratio is not None for token in tokens):
        names.append("ratio")
    if len({token.version for token in tokens if token.version is not None}) > 1:
        names.append("version")
    return names


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


def legend(by: Colouring) -> list[tuple[str, str]]:
    """What the colours mean: texts, each with the name of its style."""
    if by == "logprob":
        scale = [part for _, name, style in LIKELY for part in ((name, style), ("  ", ""))]
        return [(" colours", "bold"), (": probability of at least ", ""), *scale]
    return [(" colours", "bold"), (f": {by}; {LEGENDS[by]}", "")]
