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

    def __init__(
        self, arch: Architecture, *, dtype: torch.dtype, device: torch.device, record_experts: bool = False
    ) -> None:
        self._arch, self._dtype, self._device = arch, dtype, device
        self._recorded = arch.experts.per_token if record_experts and arch.experts is not None else 0
        self.slots = 0
        self.columns = 0
        self.keys, self.values = self._allocate(0, 0)
        self.experts = self._allocate_experts(0, 0)
        """`[L, S, T, K]`: the experts that each token went to, -1 where it went to none; K = 0 unless recorded."""
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

    def _allocate_experts(self, slots: int, columns: int) -> Tensor:
        shape = (self._arch.num_layers, slots, columns, self._recorded)
        return torch.full(shape, -1, dtype=torch.int16, device=self._device)

    def resize(self, slots: int, columns: int) -> None:
        """Become exactly this large; what lies in both the old and the new rectangle stays."""
        old_keys, old_values = self.keys, self.values
        self.keys, self.values = self._allocate(slots, columns)
        kept, width = min(slots, self.slots), min(columns, self.columns)
        self.keys[:, :kept, :, :, :width] = old_keys[:, :kept, :, :, :width]
        self.values[:, :kept, :, :width] = old_values[:, :kept, :, :width]
        if self._recorded:
            old_experts, self.experts = self.experts, self._allocate_experts(slots, columns)
            self.experts[:, :kept, :width] = old_experts[:, :kept, :width]
        self.slots, self.columns = slots, columns
        self.index = torch.arange(max(slots, columns), device=self._device)

    def copy_prefix(self, sources: list[int], targets: list[int], length: int) -> None:
        """Copy the first `length` columns of each source slot to its target slot (targets are no sources)."""
        if length == 0 or not sources:
            return
        source, target = self._index(sources), self._index(targets)
        self.keys[:, target, :, :, :length] = self.keys[:, source, :, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]
        if self._recorded:
            self.experts[:, target, :length] = self.experts[:, source, :length]

    def record(self, layer: int, slots: Tensor, positions: Tensor, chosen_NK: Tensor | int) -> None:
        """Note which experts tokens went to, if that is asked for."""
        if self._recorded:
            chosen = chosen_NK.to(torch.int16) if isinstance(chosen_NK, Tensor) else chosen_NK
            self.experts[layer][slots, positions] = chosen

    def swap(self, left: list[int], right: list[int], length: int) -> None:
        """Exchange the first `length` columns of pairs of slots."""
        self.copy_prefix(left + right, right + left, length)

    def _index(self, slots: list[int]) -> Tensor:
        return torch.tensor(slots, dtype=torch.int64, device=self._device)
