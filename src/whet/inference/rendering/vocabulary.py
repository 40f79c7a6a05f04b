"""The text of single tokens, for display. Needs neither torch nor the model's weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whet.errors import MissingExtraError, ModelLoadError
from whet.inference.model_names import on_this_machine

TOKENIZER = "tokenizer.json"


class Vocabulary:
    """The tokenizer of a model whose files are on this machine; nothing is downloaded.

    Raises `ModelLoadError` where there is no tokenizer.json, `MissingExtraError` without the library.
    """

    def __init__(self, model: str) -> None:
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError as error:
            raise MissingExtraError("showing tokens as text", "train") from error
        file = _tokenizer_file(model)
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exceptions
            raise ModelLoadError(f"{file} cannot be read ({str(error).partition(chr(10))[0]})") from None

    def count(self, text: str) -> int:
        """Tokens of a text, without those that a chat template adds."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, special ones by their names.

        "" where its character ends in a later token, and for an id that is no token.
        """
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        return [(stream.step(self._tokenizer, id) or "") if 0 <= id < 2**32 else "" for id in ids]


def run_vocabulary(directory: Path, model: str) -> Vocabulary:
    """The tokenizer in the directory of a training run, else that of its model. Raises as `Vocabulary` does."""
    trained = directory / "model"
    return Vocabulary(str(trained) if (trained / TOKENIZER).is_file() else model)


def _tokenizer_file(model: str) -> Path:
    directory = on_this_machine(model) if model else None
    if directory is None:
        raise ModelLoadError(f"the tokenizer of {model or 'an unknown model'} is not on this machine")
    if not (directory / TOKENIZER).is_file():
        raise ModelLoadError(f"{directory} has no {TOKENIZER}")
    return directory / TOKENIZER
