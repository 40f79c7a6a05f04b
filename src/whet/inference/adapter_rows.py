"""Rows of different adapters in one batch: which row belongs to which, and what that adds to a projection.

All rows go through the base weights together. What the adapters add is computed in the way that suits the batch: where
all rows are of one adapter, by its two thin products; in decode steps whose rows are spread evenly over several, by
products over all of them at once (`adapter_stack.py`); otherwise each adapter's rows are brought side by side and take
their two products, one adapter after the other. Rows of the base get nothing, and nothing passes from row to row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from whet.inference.adapter_stack import Stack, StackedRows
from whet.inference.adapters import PackedAdapter


class AdapterRows:
    """The adapters of a batch of B rows, M of which have one."""

    def __init__(
        self, adapters: list[PackedAdapter], rows_N: list[list[int]], batch: int, device: torch.device
    ) -> None:
        """`rows_N` are the rows of each adapter, at least one; `batch` is B."""
        order = [row for rows in rows_N for row in rows]
        back = [len(order)] * batch
        for place, row in enumerate(order):
            back[row] = place
        self._adapters, self._rows_N, self._batch = adapters, rows_N, batch
        self._counts = [len(rows) for rows in rows_N]
        self._everywhere = adapters[0] if self._counts == [batch] else None
        self._order_M = torch.tensor(order, device=device)  # adapter by adapter
        self._back_B = torch.tensor(back, device=device)  # a row's place in that; M where it has none
        self._stacked: StackedRows | None = None

    @classmethod
    def of(cls, adapters_B: Sequence[PackedAdapter | None], device: torch.device) -> AdapterRows | None:
        """From each row's adapter; None where no row has one."""
        rows: dict[int, tuple[PackedAdapter, list[int]]] = {}
        for row, adapter in enumerate(adapters_B):
            if adapter is not None:
                rows.setdefault(id(adapter), (adapter, []))[1].append(row)
        if not rows:
            return None
        return cls([each for each, _ in rows.values()], [own for _, own in rows.values()], len(adapters_B), device)

    def over(self, length: int) -> AdapterRows:
        """The same for rows of `length` tokens each, `[B * length]`, a row's tokens one after the other."""
        spread = [[row * length + i for row in rows for i in range(length)] for rows in self._rows_N]
        return AdapterRows(self._adapters, spread, self._batch * length, self._back_B.device)

    def for_many_steps(self, earlier: AdapterRows | None) -> AdapterRows:
        """The same, stacked where that pays; with the stack of `earlier` rows where it is of the same adapters."""
        longest, adapters = max(self._counts), self._adapters
        if len(adapters) > 1 and len(adapters) * longest <= 2 * sum(self._counts):
            stack = None if earlier is None or earlier._stacked is None else earlier._stacked.stack
            if stack is None or {*map(id, stack.adapters)} != {*map(id, adapters)}:
                stack = Stack.of(adapters)
            rows = {id(adapter): rows for adapter, rows in zip(adapters, self._rows_N, strict=True)}
            of_stack = [rows[id(adapter)] for adapter in stack.adapters]
            self._stacked = StackedRows(stack, of_stack, self._batch, self._back_B.device)
        return self

    def add(self, y: Tensor, x: Tensor, layer: int, place: int) -> None:
        """Add what the adapters make of `x` to `y`, its projection by the base weights at `place` of a layer."""
        if self._everywhere is not None:
            factors = self._everywhere.layers[layer][place]
            if factors is not None:
                y.addmm_(torch.mm(x, factors.down), factors.up)
        elif self._stacked is not None:
            self._stacked.add(y, x, layer, place)
        elif any(adapter.layers[layer][place] is not None for adapter in self._adapters):
            self._add_one_by_one(y, x, layer, place)

    def _add_one_by_one(self, y: Tensor, x: Tensor, layer: int, place: int) -> None:
        added = []
        own_x = x.index_select(0, self._order_M).split(self._counts)
        for adapter, x_own in zip(self._adapters, own_x, strict=True):
            factors = adapter.layers[layer][place]
            if factors is None:
                added.append(y.new_zeros(len(x_own), y.shape[1]))
            else:
                added.append(torch.mm(torch.mm(x_own, factors.down), factors.up))
        added.append(y.new_zeros(1, y.shape[1]))  # what rows without an adapter get
        y.add_(torch.cat(added).index_select(0, self._back_B))
