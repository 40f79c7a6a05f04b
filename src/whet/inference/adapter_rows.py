"""Rows of different adapters in one batch: which row belongs to which, and what that adds to a projection.

All rows go through the base weights together. Then each adapter's rows, brought side by side, go through its two thin
matrices, and what comes out is added to the rows it belongs to; rows of the base get nothing. Cost beyond the base:
two thin products an adapter and three passes over the batch, or the two products alone where all rows are of one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from whet.inference.adapters import PackedAdapter


class AdapterRows:
    """The adapters of a batch of B rows, M of which have one."""

    def __init__(self, spans: list[tuple[PackedAdapter, int, int]], order_M: Tensor, back_B: Tensor) -> None:
        """`order_M` are the rows with an adapter, adapter by adapter, and `spans` say where each one's begin and end in
        it; `back_B` is a row's place in it, M for a row without an adapter."""
        self._spans, self._order_M, self._back_B = spans, order_M, back_B
        self._everywhere = spans[0][0] if len(spans) == 1 and len(order_M) == len(back_B) else None

    @classmethod
    def of(cls, adapters_B: Sequence[PackedAdapter | None], device: torch.device) -> AdapterRows | None:
        """From each row's adapter; None where no row has one."""
        rows: dict[int, tuple[PackedAdapter, list[int]]] = {}
        for row, adapter in enumerate(adapters_B):
            if adapter is not None:
                rows.setdefault(id(adapter), (adapter, []))[1].append(row)
        if not rows:
            return None
        spans, order = [], list[int]()
        for adapter, own in rows.values():
            spans.append((adapter, len(order), len(order) + len(own)))
            order += own
        back = [len(order)] * len(adapters_B)
        for place, row in enumerate(order):
            back[row] = place
        return cls(spans, torch.tensor(order, device=device), torch.tensor(back, device=device))

    def over(self, length: int) -> AdapterRows:
        """The same for rows of `length` tokens each, `[B * length]`, a row's tokens one after the other."""
        if length == 1:
            return self
        within = torch.arange(length, device=self._order_M.device)
        every = length * len(self._order_M)
        order = (self._order_M.unsqueeze(1) * length + within).flatten()
        back = (self._back_B.unsqueeze(1) * length + within).flatten().clamp_max_(every)
        return AdapterRows([(adapter, a * length, b * length) for adapter, a, b in self._spans], order, back)

    def add(self, y: Tensor, x: Tensor, layer: int, place: int) -> None:
        """Add what the adapters make of `x` to `y`, its projection by the base weights at `place` of a layer."""
        if self._everywhere is not None:
            factors = self._everywhere.layers[layer][place]
            if factors is not None:
                y.addmm_(torch.mm(x, factors.down), factors.up)
            return
        if all(adapter.layers[layer][place] is None for adapter, _, _ in self._spans):
            return
        x_M = x.index_select(0, self._order_M)
        added = y.new_empty(len(x_M) + 1, y.shape[1])
        added[-1].zero_()
        for adapter, start, end in self._spans:
            factors = adapter.layers[layer][place]
            if factors is None:
                added[start:end].zero_()
            else:
                torch.mm(torch.mm(x_M[start:end], factors.down), factors.up, out=added[start:end])
        y.add_(added.index_select(0, self._back_B))
