"""The text of single tokens, for display. Needs neither torch nor the model's weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whet.errors import MissingExtraError, ModelLoadError
from whet.inference.loading import TINY, resolve_model

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

    def texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, special ones by their names.

        "" where its character ends in a later token, and for an id that is no token.
        """
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        return [(stream.step(self._tokenizer, id) or "") if 0 <= id < 2**32 else "" for id in ids]


def _tokenizer_file(model: str) -> Path:
    if model == TINY or (model and Path(model).expanduser().is_dir()):
        file = resolve_model(model) / TOKENIZER
        if not file.is_file():
            raise ModelLoadError(f"{file.parent} has no {TOKENIZER}")
        return file
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model, TOKENIZER)
    except HFValidationError:
        cached = None
    if not isinstance(cached, str):
        raise ModelLoadError(f"the tokenizer of {model or 'an unknown model'} is not on this machine")
    return Path(cached)
