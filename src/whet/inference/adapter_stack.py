"""Adapters stacked, so that two batched products serve the rows of all of them.

That takes half to two thirds of the time of an adapter after the other where rows are few, which is when a decode step
is mostly the calls it makes. It needs the adapters' memory once more, and rows that are spread evenly: every adapter
computes as many as the one with most.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whet.inference.adapters import Factors, PackedAdapter


class Stack(NamedTuple):
    """N adapters; `factors` by layer and place are `[N, in, R]` and `[N, R, out]`, thinner ones filled with zeros."""

    adapters: list[PackedAdapter]
    factors: list[list[Factors | None]]

    @classmethod
    def of(cls, adapters: list[PackedAdapter]) -> Stack:
        layers = zip(*(adapter.layers for adapter in adapters), strict=True)
        return cls(adapters, [[_stacked(parts) for parts in zip(*layer, strict=True)] for layer in layers])


class StackedRows:
    """The rows of a batch as groups of equal length L, one for each adapter of a stack."""

    def __init__(self, stack: Stack, rows_N: list[list[int]], batch: int, device: torch.device) -> None:
        """`rows_N` are each adapter's rows, at least one; `batch` is how many rows there are with those without."""
        longest = max(map(len, rows_N))
        lacking = [True] * batch
        place = [0] * batch
        for number, rows in enumerate(rows_N):
            for i, row in enumerate(rows):
                place[row], lacking[row] = number * longest + i, False
        # Shorter groups are filled up with a row of their own, whose result is then not looked at.
        padded = [row for rows in rows_N for row in rows + rows[:1] * (longest - len(rows))]
        self.stack = stack
        self._padded_NL = torch.tensor(padded, device=device)
        self._place_B = torch.tensor(place, device=device)
        self._lacking_B1 = torch.tensor(lacking, device=device).unsqueeze(1) if any(lacking) else None

    def add(self, y: Tensor, x: Tensor, layer: int, place: int) -> None:
        """See `AdapterRows.add`."""
        factors = self.stack.factors[layer][place]
        if factors is None:
            return
        x_NL = x.index_select(0, self._padded_NL).view(len(factors.down), -1, x.shape[1])
        added = torch.bmm(torch.bmm(x_NL, factors.down), factors.up).view(-1, y.shape[1])
        own_B = added.index_select(0, self._place_B)
        if self._lacking_B1 is not None:
            own_B.masked_fill_(self._lacking_B1, 0.0)
        y.add_(own_B)


def _stacked(parts: tuple[Factors | None, ...]) -> Factors | None:
    held = [factors for factors in parts if factors is not None]
    if not held:
        return None
    (source, _), target = held[0].down.shape, held[0].up.shape[1]
    rank = max(factors.up.shape[0] for factors in held)
    stacked = Factors(held[0].down.new_zeros(len(parts), source, rank), held[0].up.new_zeros(len(parts), rank, target))
    for number, factors in enumerate(parts):
        if factors is not None:
            own = factors.up.shape[0]
            stacked.down[number, :, :own] = factors.down
            stacked.up[number, :own] = factors.up
    return stacked
