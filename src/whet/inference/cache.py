"""The KV cache: one rectangle of slots, grown by doubling, indexed by (layer, slot, head, position).

Slot `s` holds one sequence from column 0 on, so a row's position is its column and later turns of a rollout go on
where the earlier ones ended. Keys are stored transposed, `[.., D, T]`, because the decode step's `q @ k^T` is then a
product over contiguous columns (a quarter faster on CPU). Which slot belongs to whom is `scheduler.py`'s business.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whet.inference.architecture import Architecture


class KVCache:
    """Keys `[L, S, heads, D, T]` and values `[L, S, heads, T, D]`; zeros at first, so unwritten columns are finite."""

    def __init__(self, arch: Architecture, *, dtype: torch.dtype, device: torch.device) -> None:
        self._arch, self._dtype, self._device = arch, dtype, device
        self.slots = 0
        self.columns = 0
        self.keys, self.values = self._allocate(0, 0)
        self.index = torch.arange(0, device=device)
        """0, 1, 2, ... as far as slots or columns go."""

    @staticmethod
    def bytes_per_token(arch: Architecture, dtype: torch.dtype) -> int:
        return arch.kv_values_per_token * dtype.itemsize

    def _allocate(self, slots: int, columns: int) -> tuple[Tensor, Tensor]:
        arch = self._arch
        lead = (arch.num_layers, slots, arch.num_kv_heads)
        keys = torch.zeros(*lead, arch.head_dim, columns, dtype=self._dtype, device=self._device)
        values = torch.zeros(*lead, columns, arch.head_dim, dtype=self._dtype, device=self._device)
        return keys, values

    def resize(self, slots: int, columns: int) -> None:
        """Become exactly this large; what lies in both the old and the new rectangle stays."""
        old_keys, old_values = self.keys, self.values
        self.keys, self.values = self._allocate(slots, columns)
        kept, width = min(slots, self.slots), min(columns, self.columns)
        self.keys[:, :kept, :, :, :width] = old_keys[:, :kept, :, :, :width]
        self.values[:, :kept, :, :width] = old_values[:, :kept, :, :width]
        self.slots, self.columns = slots, columns
        self.index = torch.arange(max(slots, columns), device=self._device)

    def copy_prefix(self, sources: list[int], targets: list[int], length: int) -> None:
        """Copy the first `length` columns of each source slot to its target slot (targets are no sources)."""
        if length == 0 or not sources:
            return
        source, target = self._index(sources), self._index(targets)
        self.keys[:, target, :, :, :length] = self.keys[:, source, :, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]

    def swap(self, left: list[int], right: list[int], length: int) -> None:
        """Exchange the first `length` columns of pairs of slots."""
        self.copy_prefix(left + right, right + left, length)

    def _index(self, slots: list[int]) -> Tensor:
        return torch.tensor(slots, dtype=torch.int64, device=self._device)
