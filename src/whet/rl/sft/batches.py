"""Which rows a step trains: every row once an epoch, each epoch in an order of its own. Pure; resumes by a number.

    3 rows, batches of 2     epoch 1: c a b     epoch 2: b c a     step 1: c a     step 2: b b     step 3: c a

A batch takes what it needs from the next epoch, so all but the last have the same size. With a limit on tokens a batch
ends before the row that would exceed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random


@dataclass(frozen=True, slots=True)
class Pick:
    epoch: int  # from 1
    row: int  # from 0


@dataclass(slots=True)
class Batches:
    """Batches over rows of these many tokens; without `epochs`, without end."""

    tokens: Sequence[int]
    batch_size: int
    batch_tokens: int | None
    epochs: int | None
    seed: int
    taken: int = 0
    tokens_taken: int = 0  # since it was made
    _orders: dict[int, list[int]] = field(default_factory=dict)

    def next(self) -> list[Pick]:
        """The rows of the next step; empty where every epoch is over."""
        batch: list[Pick] = []
        total = 0
        while len(batch) < self.batch_size and (pick := self._pick(self.taken)) is not None:
            total += self.tokens[pick.row]
            if batch and self.batch_tokens is not None and total > self.batch_tokens:
                break
            batch.append(pick)
            self.taken += 1
            self.tokens_taken += self.tokens[pick.row]
        return batch

    def left(self) -> int:
        """How many batches are to come; only where epochs end."""
        assert self.epochs is not None, "endless batches have no number"
        counted = replace(self)
        number = 0
        while counted.next():
            number += 1
        return number

    def _pick(self, position: int) -> Pick | None:
        epoch, place = divmod(position, len(self.tokens))
        if self.epochs is not None and epoch >= self.epochs:
            return None
        if epoch not in self._orders:
            rows = range(len(self.tokens))
            self._orders = {epoch: Random(f"epoch {epoch} {self.seed}").sample(rows, len(rows))}
        return Pick(epoch + 1, self._orders[epoch][place])
