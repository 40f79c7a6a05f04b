"""The KV cache of a transformers model: slots x columns for each layer, whatever its heads and widths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

from whet.errors import ModelLoadError


class LayerShape(NamedTuple):
    """Of one layer's cache."""

    heads: int
    key_width: int
    value_heads: int
    value_width: int


def cache_shapes(model: PreTrainedModel) -> list[LayerShape]:
    """What each layer keeps of a token, as a forward pass over one token shows it.

    Raises `ModelLoadError` for a model that keeps anything else than keys and values of every token: states that sum up
    the past cannot be cut back to where two rollouts part.
    """
    kind = model.config.model_type
    other = ModelLoadError(
        f"{kind} models keep more than keys and values of tokens (such as the state of a recurrent layer); whet cannot "
        "continue those from where two rollouts part, and does not run them. Use a vLLM server to sample from them."
    )
    if getattr(model, "_is_stateful", False):
        raise other
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        try:
            model(torch.zeros(1, 1, dtype=torch.int64, device=model.device), past_key_values=cache, use_cache=True)
        except (TypeError, ValueError, AttributeError, NotImplementedError):
            raise other from None
    shapes = []
    for layer in cache.layers:
        if type(layer) is DummyLayer:  # this one reads the keys and values of an earlier one
            shapes.append(LayerShape(0, 0, 0, 0))
            continue
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) or layer.keys is None or layer.keys.dim() != 4:
            raise other
        keys, values = layer.keys, layer.values
        shapes.append(LayerShape(keys.shape[1], keys.shape[3], values.shape[1], values.shape[3]))
    return shapes


class PlainCache:
    """Keys and values `[S, heads, T, D]` of each layer, which may differ in heads and width. See `cache.KVCache`."""

    def __init__(self, shapes: Sequence[LayerShape], *, dtype: torch.dtype, device: torch.device) -> None:
        self._shapes, self._dtype, self._device = shapes, dtype, device
        numbers = sum(one.heads * one.key_width + one.value_heads * one.value_width for one in shapes)
        self.bytes_per_token = numbers * dtype.itemsize
        self.slots = self.columns = 0
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.index = torch.arange(0, device=device)
        self._allocate(0, 0, kept=0)

    def tensors(self) -> list[Tensor]:
        return [*self.keys, *self.values, self.index]

    def resize(self, slots: int, columns: int, *, kept: int) -> None:
        """Become exactly this large. Of the first `kept` slots what is in both rectangles stays."""
        self._allocate(slots, columns, kept=min(kept, slots, self.slots))

    def _allocate(self, slots: int, columns: int, *, kept: int) -> None:
        width = min(columns, self.columns)

        def resized(old: list[Tensor], shapes: list[tuple[int, int]]) -> list[Tensor]:
            new = [torch.zeros(slots, h, columns, d, dtype=self._dtype, device=self._device) for h, d in shapes]
            for to, source in zip(new, old, strict=False):
                to[:kept, :, :width] = source[:kept, :, :width]
            return new

        self.keys = resized(self.keys, [(one.heads, one.key_width) for one in self._shapes])
        self.values = resized(self.values, [(one.value_heads, one.value_width) for one in self._shapes])
        self.slots, self.columns = slots, columns
        self.index = torch.arange(max(slots, columns), device=self._device)

    def copy_prefix(self, sources: list[int], targets: list[int], length: int) -> None:
        """Copy the first `length` columns of each source slot, as they are now, to its target slot."""
        if length == 0 or not sources:
            return
        source, target = (torch.tensor(slots, device=self._device) for slots in (sources, targets))
        for layer in (*self.keys, *self.values):
            part = layer[:, :, :length]
            part.index_copy_(0, target, part.index_select(0, source))

    def swap(self, left: list[int], right: list[int], length: int) -> None:
        """Exchange the first `length` columns of pairs of slots."""
        self.copy_prefix(left + right, right + left, length)
