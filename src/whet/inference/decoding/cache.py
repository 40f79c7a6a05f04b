"""The KV cache: one rectangle of slots x columns, indexed by (layer, slot, head, position).

Slot `s` holds one sequence from column 0 on, so a row's position is its column and later turns of a rollout
continue where the earlier ones ended. `scheduler.py` assigns the slots and decides the number of columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whet.inference.architecture import Architecture


class KVCache:
    """Keys and values `[L, S, heads, T, D]`; zeros at first, so unwritten columns are finite."""

    def __init__(
        self, arch: Architecture, *, dtype: torch.dtype, device: torch.device, record_experts: bool = False
    ) -> None:
        self._arch, self._device = arch, device
        self._recorded = arch.experts.per_token if record_experts and arch.experts is not None else 0
        self.slots = 0
        self.columns = 0
        heads = arch.num_kv_heads
        self.keys = torch.zeros(arch.num_layers, 0, heads, 0, arch.head_dim, dtype=dtype, device=device)
        self.values = torch.zeros_like(self.keys)
        self.experts = self._allocate_experts(0, 0)
        """`[L, S, T, K]`: the experts that each token went to, -1 where it went to none; K = 0 unless recorded."""
        self.index = torch.arange(0, device=device)
        """0, 1, 2, ... as far as slots or columns go."""

    @staticmethod
    def bytes_per_token(arch: Architecture, dtype: torch.dtype) -> int:
        return arch.kv_values_per_token * dtype.itemsize

    def _allocate_experts(self, slots: int, columns: int) -> Tensor:
        shape = (self._arch.num_layers, slots, columns, self._recorded)
        return torch.full(shape, -1, dtype=torch.int16, device=self._device)

    def tensors(self) -> list[Tensor]:
        return [self.keys, self.values, self.experts, self.index]

    def resize(self, slots: int, columns: int, *, kept: int) -> None:
        """Become exactly this large. Of the first `kept` slots what is in both rectangles stays."""
        kept, width = min(kept, slots, self.slots), min(columns, self.columns)
        self.keys = _resized(self.keys, slots, columns, kept, width)  # one after the other: less is held at once
        self.values = _resized(self.values, slots, columns, kept, width)
        if self._recorded:
            old_experts, self.experts = self.experts, self._allocate_experts(slots, columns)
            self.experts[:, :kept, :width] = old_experts[:, :kept, :width]
        self.slots, self.columns = slots, columns
        self.index = torch.arange(max(slots, columns), device=self._device)

    def copy_prefix(self, sources: list[int], targets: list[int], length: int) -> None:
        """Copy the first `length` columns of each source slot, as they are now, to its target slot."""
        if length == 0 or not sources:
            return
        source, target = self._index(sources), self._index(targets)
        for layer in (*self.keys[:, :, :, :length], *self.values[:, :, :, :length]):
            layer.index_copy_(0, target, layer.index_select(0, source))  # what one layer needs stays near the core
        if self._recorded:
            self.experts[:, target, :length] = self.experts[:, source, :length]

    def record(self, layer: int, slots: Tensor, positions: Tensor, chosen_NK: Tensor | int) -> None:
        """Record which experts tokens went to, where that is switched on."""
        if self._recorded:
            chosen = chosen_NK.to(torch.int16) if isinstance(chosen_NK, Tensor) else chosen_NK
            self.experts[layer][slots, positions] = chosen

    def swap(self, left: list[int], right: list[int], length: int) -> None:
        """Exchange the first `length` columns of pairs of slots."""
        self.copy_prefix(left + right, right + left, length)

    def _index(self, slots: list[int]) -> Tensor:
        return torch.tensor(slots, dtype=torch.int64, device=self._device)


def _resized(old: Tensor, slots: int, columns: int, kept: int, width: int) -> Tensor:
    """Another rectangle with the first `kept` slots and `width` columns of `old`, and zeros."""
    layers, _, heads, _, dim = old.shape
    new = old.new_empty(layers, slots, heads, columns, dim)
    new[:, :kept, :, :width] = old[:, :kept, :, :width]
    new[:, :kept, :, width:] = 0
    new[:, kept:] = 0
    return new
