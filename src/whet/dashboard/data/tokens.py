"""The tokens of a rollout as columns, with their texts where the tokenizer is on this machine."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from whet.dashboard.data.rollouts import ShownRollout
from whet.dashboard.library import LibraryRun
from whet.errors import WhetError
from whet.inference.rendering.vocabulary import run_vocabulary
from whet.records.sources import RunSource
from whet.records.tail import file_stamp
from whet.records.tokens import Decode, Token, TokenView, token_view

MOST_TOKENS = 20_000
MOST_TOKENIZERS = 2
COLUMNS: dict[str, Callable[[Token], Any]] = {
    "ids": lambda token: token.id,
    "texts": lambda token: token.text,
    "sampled": lambda token: token.sampled,
    "logprobs": lambda token: token.logprob,
    "versions": lambda token: token.version,
    "learner_logprobs": lambda token: token.learner_logprob,
    "ratios": lambda token: token.ratio,
    "masked": lambda token: token.masked,
    "clipped": lambda token: token.clipped,
    "advantages": lambda token: token.advantage,
}


class Tokenizers:
    """The few that were used last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: OrderedDict[str, Decode | str] = OrderedDict()

    def of(self, run: LibraryRun) -> tuple[Decode | None, str | None]:
        """How tokens of a run become text, or why they do not."""
        source = _source(run)
        if source is None:
            return None, "tokens are shown as numbers: the tokenizer is not in the run's directory"
        key = f"{source.rollouts.parent}\n{source.model}"
        with self._lock:
            texts = self._loaded.get(key)
            if texts is None:
                try:
                    texts = run_vocabulary(source.rollouts.parent, source.model).texts
                except WhetError as error:
                    texts = f"tokens are shown as numbers: {error}"
                except Exception as error:  # of the tokenizers library, for a file that is none
                    texts = f"tokens are shown as numbers: the tokenizer cannot be read ({type(error).__name__})"
                self._loaded[key] = texts
                while len(self._loaded) > MOST_TOKENIZERS:
                    self._loaded.popitem(last=False)
            self._loaded.move_to_end(key)
        return (None, texts) if isinstance(texts, str) else (texts, None)


def _source(run: LibraryRun) -> RunSource | None:
    """What the tokenizer is found by; None where that would be a file that the run's config names at will."""
    assert run.directory is not None
    model = run.model
    named = model.count("/") == 1 and not model.startswith((".", "/", "~")) and ".." not in model
    if not (run.trusted or named):
        return None
    rollouts = run.directory / "rollouts"
    trained = run.directory / "model"
    linked = any(path.is_symlink() for path in (trained, trained / "tokenizer.json"))
    if linked or file_stamp(trained) is None:
        rollouts = run.directory / "rollouts" / "none"  # a path without a model next to it
    return RunSource(rollouts, "training", rollouts, model=model)


def tokens_of(shown: ShownRollout, decode: Decode | None) -> TokenView:
    """The tokens of a rollout."""
    row = shown.row if shown.turns is None else {**shown.row, "turns": shown.turns}
    try:
        return token_view(row, decode)
    except Exception:  # of the tokenizers library, for ids that it does not have
        return replace(token_view(row), note="tokens are shown as numbers: the tokenizer does not have all of them")


def tokens_json(view: TokenView, note: str | None, start: int = 0) -> dict[str, Any]:
    """Tokens from number `start` on, at most 20,000, turn by turn; a column that is all unknown is left out."""
    turns: list[dict[str, Any]] = []
    seen, left = 0, MOST_TOKENS
    for turn in view.turns:
        first = max(0, start - seen)
        shown: Sequence[Token] = turn.tokens[first : first + left]
        seen += len(turn.tokens)
        left -= len(shown)
        values = {name: [of(token) for token in shown] for name, of in COLUMNS.items()}
        turns.append(
            {
                "number": turn.number,
                "start": turn.start,
                "branch": turn.branch,
                "note": turn.note,
                "tokens": len(turn.tokens),
                "from": first,
                **{name: column for name, column in values.items() if any(value is not None for value in column)},
            }
        )
    given = start + MOST_TOKENS - left
    return {
        "turns": turns,
        "advantage": view.advantage,
        "note": view.note or note,
        "count": seen,
        "next": given if given < seen else None,
    }
