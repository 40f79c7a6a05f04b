"""Models of families that whet's own forward pass does not know: they run through the one of transformers, slower.

`describe` decides which of the two a checkpoint runs through, from its `config.json` alone; nothing here imports torch,
and only `check_known` imports transformers. What cannot run at all is refused by name, as early as it is known: here
what the config says, and in `decoder.py`, once the model is loaded, what only a forward pass shows.
Code that comes with a checkpoint (`trust_remote_code`) is never run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import ModelLoadError
from whet.inference.architecture import Architecture, UnknownFamilyError, parse_architecture, read_json

CONTEXT_WHERE_UNSTATED = 2048
"""Tokens of context of a model whose files state no limit, as models without positional embeddings."""

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx", "max_sequence_length")
_STATED_AT_MOST = 1 << 24
"""Tokenizers state a number with 30 digits where their context has no limit."""


@dataclass(frozen=True, slots=True)
class OtherFamily:
    """A causal language model that runs through transformers' own forward pass: what is known before it is loaded."""

    model_type: str
    vocab_size: int
    max_context: int
    unknown: str
    """What whet's own forward pass does not compute."""
    experts: None = None
    """Which experts its tokens go to is not recorded."""

    @property
    def notice(self) -> str:
        """For the user, once a run."""
        return (
            f"whet's own forward pass does not know {self.unknown}: the model runs through that of transformers, which "
            "is slower"
        )


def describe(directory: Path) -> Architecture | OtherFamily:
    """What the model in a directory is, and so which forward pass it runs through.

    Raises `ModelLoadError` for a config that is missing or torn, and for what neither forward pass computes.
    """
    path = directory / "config.json"
    config = read_json(path, "a model")
    try:
        return parse_architecture(config, where=str(path))
    except UnknownFamilyError as unknown:
        return _other_family(config, directory, unknown)


def _other_family(config: dict[str, Any], directory: Path, unknown: UnknownFamilyError) -> OtherFamily:
    path, model_type = directory / "config.json", config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ModelLoadError(f"{path} does not say what kind of model this is (model_type); fetch the model again")
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    if config.get("quantization_config") or text.get("quantization_config"):
        raise unknown  # which names it
    if config.get("is_encoder_decoder"):
        raise ModelLoadError(
            f"{path}: this {model_type} model has an encoder and a decoder. whet runs causal language models, which "
            "continue one text."
        )
    vocabulary = text.get("vocab_size", config.get("vocab_size"))
    if not isinstance(vocabulary, int):
        raise ModelLoadError(f"{path}: the {model_type} config states no vocab_size, so this is no language model")
    return OtherFamily(
        model_type=model_type,
        vocab_size=vocabulary,
        max_context=_context(text, directory),
        unknown=unknown.what,
    )


def _context(config: dict[str, Any], directory: Path) -> int:
    """The limit that the config or the tokenizer states."""
    stated = [config.get(key) for key in _CONTEXT_KEYS]
    try:
        tokenizer = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
        stated.append(tokenizer.get("model_max_length"))
    except (OSError, ValueError, AttributeError):
        pass  # whether the tokenizer can be read is found when it is
    limits = [int(limit) for limit in stated if isinstance(limit, int | float) and 0 < limit < _STATED_AT_MOST]
    context = limits[0] if limits else CONTEXT_WHERE_UNSTATED
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type")) in ("longrope", "dynamic"):
        # Longer texts turn all positions by other frequencies, those of tokens that were kept in the cache too.
        original = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
        context = min(context, int(original or context))
    return context


def check_known(directory: Path, family: OtherFamily) -> None:
    """Raise `ModelLoadError` where transformers has no causal language model for this checkpoint.

    Imports transformers; no weight is read.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    path = directory / "config.json"
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # configs raise whatever their checks of values raise
        if "auto_map" in read_json(path, "a model"):
            raise ModelLoadError(
                f"{path}: transformers knows {family.model_type!r} models only through Python code that comes with the "
                "checkpoint, and whet never runs such code. Serve the model with vLLM, or convert it to a family that "
                "transformers has."
            ) from None
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelLoadError(f"{path}: transformers cannot read this config ({reason})") from None
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelLoadError(
            f"{path}: transformers has no causal language model of type {family.model_type!r}, and neither has whet"
        )
