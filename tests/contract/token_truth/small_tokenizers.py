"""Tokenizers that need no download: a byte-level BPE trained on a few lines, and the markers a format needs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from renderers import AutoRendererConfig, create_renderer
from renderers.base import MODEL_RENDERER_MAP
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

LINES = (
    "the quick brown fox, the tool answers: true false null 1.0 12\n\n",
    '{"name": "calculate", "arguments": {"expression": "1+2"}}\n',
    "user assistant system tool  two   spaces\n\n\n\t\tand tabs\n",
)

_BAR, _UNDER = "\uff5c", "\u2581"
_DEEPSEEK = tuple(
    f"<{_BAR}{name.replace(' ', _UNDER)}{_BAR}>"
    for name in (
        "begin of sentence",
        "end of sentence",
        "User",
        "Assistant",
        "tool calls begin",
        "tool calls end",
        "tool call begin",
        "tool call end",
        "tool sep",
        "tool outputs begin",
        "tool outputs end",
        "tool output begin",
        "tool output end",
    )
)
_ALWAYS_ENCODED = {
    "deepseek-v3": _DEEPSEEK,
    "deepseek-r1": (*_DEEPSEEK, "<think>", "</think>"),
    "deepseek-v4": (
        *_DEEPSEEK,
        "<think>",
        "</think>",
        f"{_BAR}DSML{_BAR}",
        *(
            f"<{_BAR}{name}{_BAR}>"
            for name in ("latest_reminder", "action", "query", "authority", "domain", "title", "read_url")
        ),
    ),
}
"""Markers of formats that encode them, and so cannot be asked which they need."""

MODELS = {renderer: model for model, renderer in reversed(MODEL_RENDERER_MAP.items())}
"""A model of each format that the `renderers` package ships."""


def byte_pairs(markers: tuple[str, ...], *, eos: str | None = None) -> Any:
    """A tokenizer of 300 or so tokens and `markers`. Any text survives encoding and decoding unchanged."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        LINES * 3, trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    )
    backend.add_tokens([AddedToken(marker, special=True, normalized=False) for marker in markers])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos, clean_up_tokenization_spaces=False)


def sentence_pieces(markers: tuple[str, ...], *, eos: str, strip: bool) -> Any:
    """A tokenizer like Llama 2's (`strip`: a text begins with a space that decoding takes away again) or Gemma's:
    words begin with a mark for their space, and what has no token is written in bytes."""
    pieces = ["\u2581", *(chr(code) for code in range(33, 127)), "\u2581t", "th", "\u2581th", "an", "\u2581w", "wo"]
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    merges = [("\u2581", "t"), ("t", "h"), ("\u2581t", "h"), ("a", "n"), ("\u2581", "w"), ("w", "o")]
    vocabulary = {name: number for number, name in enumerate(names)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True))
    begin = [normalizers.Prepend("\u2581")] if strip else []
    backend.normalizer = normalizers.Sequence([*begin, normalizers.Replace(" ", "\u2581")])
    end = [decoders.Strip(" ", 1, 0)] if strip else []
    spaces = decoders.Replace("\u2581", " ")
    backend.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), *end])
    backend.add_tokens([AddedToken(marker, special=True, normalized=False) for marker in markers])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos, clean_up_tokenization_spaces=False)


@lru_cache(maxsize=64)
def tokenizer_for(format_name: str) -> Any:
    """A small tokenizer that speaks a shipped format; named like a model of that format, so that it is recognised."""
    markers = _ALWAYS_ENCODED.get(format_name, ())
    while True:
        asking = _Asking(_named(byte_pairs(markers), format_name))
        try:
            create_renderer(asking, AutoRendererConfig(thinking_retention="all"))
        except (ValueError, AssertionError):
            if not asking.missing - set(markers):
                raise
        if not asking.missing - set(markers):
            return _named(byte_pairs(markers), format_name)
        markers = tuple(sorted({*markers, *asking.missing}))


def split_to_bytes(tokenizer: Any, ids: list[int]) -> list[int]:
    """Ids of the same text in the smallest pieces there are, as a model may sample them; markers stay whole."""
    special = set(tokenizer.added_tokens_decoder)
    pieces: list[int] = []
    for token in ids:
        letters = [token] if token in special else tokenizer.convert_tokens_to_ids(list(_letters(tokenizer, token)))
        pieces += letters
    return pieces


def _letters(tokenizer: Any, token: int) -> str:
    return str(tokenizer.convert_ids_to_tokens(token))


def _named(tokenizer: Any, format_name: str) -> Any:
    tokenizer.name_or_path = MODELS[format_name]
    return tokenizer


class _Asking:
    """A tokenizer that notes which markers a renderer asks for in vain."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.missing: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._tokenizer(*args, **kwargs)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        vocabulary = self._tokenizer.get_vocab()
        self.missing |= {
            token for token in ([tokens] if isinstance(tokens, str) else tokens) if token not in vocabulary
        }
        return self._tokenizer.convert_tokens_to_ids(tokens)
