"""How a batch is laid out for the model: micro-batches in which a prompt that several rollouts share is computed once.

    group of 3, prompt p q r, answers a b | c | d e

    prefix    p q                 computed once, read by the three rows as keys and values
    rows      r a                 every row starts with the last prompt token, which predicts the first answer token,
              r                   and ends before its last answer token, which predicts nothing that is trained
              r d

Tokens are flat (no padding) everywhere except inside attention, where prefixes and rows become padded rectangles. With
16 groups of 8 and prompts as long as answers this is half the work of one row per rollout. It changes no gradient: a
prefix token's gradient is the sum over the rows that read it. A prompt used once is simply part of its row.

Pure numpy; which sequences meet in a micro-batch depends on lengths and prompts alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whet.rl.batch import PackedBatch

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Rectangle:
    """R runs of consecutive tokens of a block, as a padded rectangle of R x L places and back again."""

    slots: Index  # R x L; which token of the block stands in a place; padding repeats token 0
    where: Index  # for each token of the block, its place in the flattened rectangle
    padding: Index  # the places of the flattened rectangle that hold no token

    @property
    def lengths(self) -> Index:
        """R; tokens of each run."""
        runs, longest = self.slots.shape
        return np.bincount(self.where // max(longest, 1), minlength=runs)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """One micro-batch: T flat tokens, first those of P shared prefixes, then those of B rows.

    N of the row tokens are predictors: their successor is a trained token.
    """

    tokens: Index  # T; where in the batch each token comes from
    positions: Index  # T; position in its sequence
    prefixes: Rectangle  # P x longest prefix, over the first tokens
    rows: Rectangle  # B x longest row, over the tokens after those
    prefix_of_row: Index  # B; 0 for a row without
    prefix_lengths: Index  # B; how much of that prefix the row reads, 0 for a row without
    predictors: Index  # N; counted from the first row token
    targets: Index  # N; where in the batch the successor is

    @property
    def prefix_tokens(self) -> int:
        return len(self.prefixes.where)


@dataclass(frozen=True, slots=True)
class _Row:
    """A sequence cut to what its trained tokens need: tokens `start : stop` of the batch, the prompt being
    `start : body` (the part that can be shared)."""

    start: int
    body: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Unit:
    """Rows that are computed together; `prefix` is the number of leading tokens they share."""

    rows: tuple[_Row, ...]
    prefix: int

    @property
    def longest(self) -> int:
        return max(row.stop - row.start for row in self.rows) - self.prefix


def micro_batches(batch: PackedBatch, token_budget: int) -> list[Layout]:
    """The batch in pieces of about `token_budget` slots, padding included, each of rows of similar length.

    Every trained token is a target exactly once. A sequence longer than the budget gets a piece of its own.
    """
    units = [piece for unit in _units(batch) for piece in _split(unit, token_budget)]
    units.sort(key=lambda unit: (unit.longest, unit.prefix))
    layouts: list[Layout] = []
    chosen: list[_Unit] = []
    for unit in units:
        if chosen and _slots([*chosen, unit]) > token_budget:
            layouts.append(_lay_out(batch, chosen))
            chosen = []
        chosen.append(unit)
    if chosen:
        layouts.append(_lay_out(batch, chosen))
    return layouts


def _slots(units: Sequence[_Unit]) -> int:
    prefixes = [unit.prefix for unit in units if unit.prefix]
    rows = sum(len(unit.rows) for unit in units)
    return len(prefixes) * max(prefixes, default=0) + rows * max(unit.longest for unit in units)


def _units(batch: PackedBatch) -> list[_Unit]:
    """Sequences with trained tokens, those with equal prompts together."""
    by_prompt: dict[bytes, list[_Row]] = {}
    for start, stop in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
        trained = np.flatnonzero(batch.trained[start:stop])
        if len(trained):
            row = _Row(start, start + int(trained[0]) - 1, start + int(trained[-1]))
            by_prompt.setdefault(batch.ids[row.start : row.body].tobytes(), []).append(row)
    units = []
    for rows in by_prompt.values():
        rows.sort(key=lambda row: row.stop - row.start)
        units.append(_Unit(tuple(rows), rows[0].body - rows[0].start if len(rows) > 1 else 0))
    return units


def _split(unit: _Unit, token_budget: int) -> Iterator[_Unit]:
    rows: list[_Row] = []
    for row in unit.rows:
        if rows and _slots([_Unit((*rows, row), unit.prefix)]) > token_budget:
            yield _Unit(tuple(rows), unit.prefix)
            rows = []
        rows.append(row)
    yield _Unit(tuple(rows), unit.prefix)


def _lay_out(batch: PackedBatch, units: Sequence[_Unit]) -> Layout:
    prefixes = [(unit.rows[0].start, unit.rows[0].start + unit.prefix) for unit in units if unit.prefix]
    spans: list[tuple[int, int]] = []
    starts: list[int] = []  # of the sequence a span belongs to, for positions
    prefix_of_row: list[int] = []
    prefix_lengths: list[int] = []
    number = 0
    for unit in units:
        for row in unit.rows:
            spans.append((row.start + unit.prefix, row.stop))
            starts.append(row.start)
            prefix_of_row.append(number if unit.prefix else 0)
            prefix_lengths.append(unit.prefix)
        number += unit.prefix > 0

    lengths = [stop - start for start, stop in [*prefixes, *spans]]
    begins = np.repeat([*(start for start, _ in prefixes), *starts], lengths)
    tokens = np.concatenate([np.arange(start, stop) for start, stop in [*prefixes, *spans]])
    prefix_tokens = sum(lengths[: len(prefixes)])
    successors = tokens[prefix_tokens:] + 1
    predictors = np.flatnonzero(batch.trained[successors])
    return Layout(
        tokens=tokens,
        positions=tokens - begins,
        prefixes=_rectangle(lengths[: len(prefixes)]),
        rows=_rectangle(lengths[len(prefixes) :]),
        prefix_of_row=np.asarray(prefix_of_row, np.int64),
        prefix_lengths=np.asarray(prefix_lengths, np.int64),
        predictors=predictors,
        targets=successors[predictors],
    )


def _rectangle(lengths: Sequence[int]) -> Rectangle:
    lengths_R = np.asarray(lengths, np.int64)
    real_RL = np.arange(lengths_R.max(initial=0)) < lengths_R[:, None]
    slots_RL = np.zeros(real_RL.shape, np.int64)
    slots_RL[real_RL] = np.arange(lengths_R.sum())
    return Rectangle(slots=slots_RL, where=np.flatnonzero(real_RL), padding=np.flatnonzero(~real_RL))
