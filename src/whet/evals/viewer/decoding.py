"""Text for the tokens of a run: its model's tokenizer, if it is on this machine. Nothing is downloaded for a look.

Only `tokenizer.json` is read, with the `tokenizers` library: neither weights nor torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from whet.errors import MissingExtraError, ModelLoadError
from whet.evals.viewer.sources import Source
from whet.evals.viewer.tokens import Decode

TOKENIZER = "tokenizer.json"
WINDOW = 8
"""Tokens before a token that are decoded with it, so that what it adds is known."""


def load_decode(source: Source) -> Decode:
    """How the tokens of a run's rollouts are turned into text.

    Raises `ModelLoadError` where its tokenizer is not on this machine or cannot be read, `MissingExtraError` without
    the `tokenizers` library.
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise MissingExtraError("showing tokens as text", "train") from error
    file = tokenizer_file(source)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exceptions for torn files
        raise ModelLoadError(f"{file} cannot be read ({str(error).strip().partition(chr(10))[0]})") from None
    return lambda ids: texts_of(ids, lambda some: str(tokenizer.decode(list(some), skip_special_tokens=False)))


def tokenizer_file(source: Source) -> Path:
    """Where the tokenizer of a run lies: in the run, in the model's directory, or in the Hugging Face cache."""
    from whet.inference.loading import TINY, resolve_model

    directories = [source.rollouts.parent / "model", Path(source.model).expanduser()]
    if source.model == TINY:
        directories.append(resolve_model(TINY))
    for directory in directories:
        if (directory / TOKENIZER).is_file():
            return directory / TOKENIZER
    if source.model.count("/") == 1:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            cached = try_to_load_from_cache(source.model, TOKENIZER)
        except HFValidationError:
            cached = None
        if isinstance(cached, str):
            return Path(cached)
    raise ModelLoadError(f"the tokenizer of {source.model or 'an unknown model'} is not on this machine")


def texts_of(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    """What each token adds to the text; "" where a character is not complete yet, and the last part has it whole."""
    texts: list[str] = []
    start = done = 0  # what is decoded together with a token, and how much of the ids has its text already
    for end in range(1, len(ids) + 1):
        before, now = decode(ids[start:done]), decode(ids[start:end])
        if now.endswith("\N{REPLACEMENT CHARACTER}") and end < len(ids) and end - done < WINDOW:
            texts.append("")
            continue
        texts.append(now[len(before) :])
        done = end
        start = max(start, end - WINDOW)
    return texts
