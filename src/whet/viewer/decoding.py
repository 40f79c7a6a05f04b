"""Text for the tokens of a run: its model's tokenizer, if it is on this machine. Nothing is downloaded for a look."""

from __future__ import annotations

from whet.viewer.sources import Source
from whet.viewer.tokens import Decode


def load_decode(source: Source) -> Decode:
    """How the tokens of a run's rollouts are turned into text: by the tokenizer in the run, or by its model's.

    Raises `ModelLoadError` where it is not on this machine or cannot be read, `MissingExtraError` without the library.
    """
    from whet.inference.rendering.vocabulary import TOKENIZER, Vocabulary

    trained = source.rollouts.parent / "model"
    return Vocabulary(str(trained) if (trained / TOKENIZER).is_file() else source.model).texts
