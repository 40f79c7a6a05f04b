"""Rows of different adapters in one batch: which row belongs to which, and what that adds to a projection.

All rows go through the base weights together. What the adapters add is computed in the way that suits the batch: where
all rows are of one adapter, by its two thin products; in decode steps whose rows are spread evenly over several, by
products over all of them at once (`Stack`); otherwise each adapter's rows are brought side by side and take
their two products, one adapter after the other. Rows of the base get nothing, and nothing passes from row to row.

In float32 on a CPU the three give a row the same bits, whatever else is in the batch: from `LEAST_ROWS` rows and
`RANKS_OF` columns on, MKL adds up each element of a product in one order, which rows, columns and zeros beyond them do
not change (measured for 1 to 2,048 rows and ranks of 1 to 128; tests compare the bits). So fewer are filled up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.inference.decoding.scheduler import SampleJob, Scheduler
from whet.inference.weights.adapters import Factors, PackedAdapter

LEAST_ROWS = 4
"""Fewer are multiplied by other instructions, which add up in another order."""
IN_VAIN = 4 / 3
"""A stack serves until it is larger than that many times the adapters that still have rows."""


def filled(x: Tensor) -> Tensor:
    """With rows of zeros behind it where it has fewer than `LEAST_ROWS`."""
    return x if len(x) >= LEAST_ROWS else F.pad(x, (0, 0, 0, LEAST_ROWS - len(x)))


class AdapterRows:
    """The adapters of a batch of B rows, M of which have one."""

    def __init__(
        self, adapters: list[PackedAdapter], rows_N: list[list[int]], batch: int, device: torch.device
    ) -> None:
        """`rows_N` are the rows of each adapter, at least one; `batch` is B."""
        order = [row for rows in rows_N for row in rows]
        back = [len(order)] * batch
        for index, row in enumerate(order):
            back[row] = index
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

    def alone(self, row: int) -> PackedAdapter | None:
        """The adapter of one row."""
        return next((each for each, rows in zip(self._adapters, self._rows_N, strict=True) if row in rows), None)

    def for_many_steps(self, earlier: AdapterRows | None) -> AdapterRows:
        """The same, stacked where that pays; with the stack of `earlier` rows where that has these adapters."""
        computed, adapters = [max(count, LEAST_ROWS) for count in self._counts], self._adapters
        if len(adapters) > 1 and len(adapters) * max(computed) <= 2 * sum(computed):
            stack = None if earlier is None or earlier._stacked is None else earlier._stacked.stack
            rows = {id(adapter): rows for adapter, rows in zip(adapters, self._rows_N, strict=True)}
            if stack is None or not stack.serves(rows):
                stack = Stack.of(adapters)
            of_stack = [rows.get(id(adapter), []) for adapter in stack.adapters]
            self._stacked = StackedRows(stack, of_stack, self._batch, self._back_B.device)
        return self

    def add(self, y: Tensor, x: Tensor, layer: int, part: int) -> None:
        """Add what the adapters make of `x` to `y`, its projection by the base weights for `part` of a layer."""
        if self._everywhere is not None:
            factors = self._everywhere.layers[layer][part]
            if factors is not None:
                y.add_(_thin(x, factors))
        elif self._stacked is not None:
            self._stacked.add(y, x, layer, part)
        elif any(adapter.layers[layer][part] is not None for adapter in self._adapters):
            self._add_one_by_one(y, x, layer, part)

    def _add_one_by_one(self, y: Tensor, x: Tensor, layer: int, part: int) -> None:
        added = []
        own_x = x.index_select(0, self._order_M).split(self._counts)
        for adapter, x_own in zip(self._adapters, own_x, strict=True):
            factors = adapter.layers[layer][part]
            if factors is None:
                added.append(y.new_zeros(len(x_own), y.shape[1]))
            else:
                added.append(_thin(x_own, factors))
        added.append(y.new_zeros(1, y.shape[1]))  # what rows without an adapter get
        y.add_(torch.cat(added).index_select(0, self._back_B))


def _thin(x: Tensor, factors: Factors) -> Tensor:
    return torch.mm(torch.mm(filled(x), factors.down), factors.up)[: len(x)]


class Stacked(NamedTuple):
    """The factors of those of N adapters that have rank R at one projection: `[n, in, R]` and `[n, R, out]`."""

    numbers: tuple[int, ...]
    factors: Factors


class Stack(NamedTuple):
    """N adapters; their factors by layer and projection, equal ranks together: zeros would be read as well."""

    adapters: list[PackedAdapter]
    layers: list[list[list[Stacked]]]

    def serves(self, ids: Collection[int]) -> bool:
        """Whether adapters of these `id` are in it, and few others: to multiply with those for some steps is less work
        than a copy of all others each time that rows end."""
        return len(self.adapters) <= IN_VAIN * len(ids) and {*map(id, self.adapters)}.issuperset(ids)

    @classmethod
    def of(cls, adapters: list[PackedAdapter]) -> Stack:
        layers = zip(*(adapter.layers for adapter in adapters), strict=True)
        return cls(adapters, [[_stacked(parts) for parts in zip(*layer, strict=True)] for layer in layers])


class StackedRows:
    """The rows of a batch as groups of equal length L, one for each adapter of a stack."""

    def __init__(self, stack: Stack, rows_N: list[list[int]], batch: int, device: torch.device) -> None:
        """`rows_N` are each adapter's rows; `batch` is how many rows there are with those without."""
        self.stack = stack
        self._rows_N, self._batch, self._device = rows_N, batch, device
        self._length = max(LEAST_ROWS, *map(len, rows_N))
        self._arranged: dict[tuple[tuple[int, ...], ...], tuple[list[Tensor], Tensor]] = {}

    def add(self, y: Tensor, x: Tensor, layer: int, part: int) -> None:
        """See `AdapterRows.add`."""
        if not (stacked := self.stack.layers[layer][part]):
            return
        key = tuple(each.numbers for each in stacked)
        if key not in self._arranged:
            self._arranged[key] = self._arrange(key)
        rows, back_B = self._arranged[key]
        added = [y.new_zeros(1, y.shape[1])]  # what rows without an adapter get
        for (numbers, factors), own in zip(stacked, rows, strict=True):
            own_x = x.index_select(0, own).view(len(numbers), -1, x.shape[1])
            added.append(torch.bmm(torch.bmm(own_x, factors.down), factors.up).view(-1, y.shape[1]))
        y.add_(torch.cat(added).index_select(0, back_B))

    def _arrange(self, numbers: tuple[tuple[int, ...], ...]) -> tuple[list[Tensor], Tensor]:
        """The rows of these adapters, set by set, and each row's place in what `add` makes of them."""
        padded, back, first = [], [0] * self._batch, 1
        for some in numbers:
            padded.append(list[int]())
            for number in some:
                rows = self._rows_N[number]
                for i, row in enumerate(rows):
                    back[row] = first + i
                first += self._length
                # Shorter groups are filled up with a row, whose result is not used.
                padded[-1] += rows + (rows or [0])[:1] * (self._length - len(rows))
        return [torch.tensor(rows, device=self._device) for rows in padded], torch.tensor(back, device=self._device)


def _stacked(parts: tuple[Factors | None, ...]) -> list[Stacked]:
    by_rank: dict[int, list[int]] = {}
    for number, factors in enumerate(parts):
        if factors is not None:
            by_rank.setdefault(len(factors.up), []).append(number)
    stacks = []
    for numbers in by_rank.values():
        held = [factors for number in numbers if (factors := parts[number]) is not None]
        stack = Factors(torch.stack([each.down for each in held]), torch.stack([each.up for each in held]))
        stacks.append(Stacked(tuple(numbers), stack))
    return stacks


def adapters_of_steps(
    scheduler: Scheduler, jobs: Iterable[SampleJob], before: AdapterRows | None, device: torch.device
) -> AdapterRows | None:
    """Which adapter each row of the next decode steps has; idle rows get whichever saves work.

    `jobs` are those that run, `before` is what the last steps had.
    """
    any_adapter = next((job.adapter for job in jobs if job.adapter is not None), None)
    if any_adapter is None:
        return None
    jobs_B = [slot.job for slot in scheduler.slots[: scheduler.rows]]
    adapters_B = [any_adapter if job is None else job.adapter for job in jobs_B]
    rows = AdapterRows.of([None if adapter is None else adapter.packed for adapter in adapters_B], device)
    assert rows is not None
    return rows.for_many_steps(before)
