"""`TokenSets`: a set of token ids for each token of a sequence, such as what top-p left of each distribution.

Two flat arrays, as sets differ in size from token to token. It slices and joins like the sequence it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class TokenSets:
    """Token t has `counts[t]` ids, behind those of the tokens before it; none means the whole vocabulary."""

    counts: NDArray[np.int32]
    ids: NDArray[np.int32]

    @classmethod
    def of(cls, sets: Sequence[NDArray[np.int32]]) -> Self:
        counts = np.array([len(ids) for ids in sets], np.int32)
        return cls(counts, np.concatenate([np.zeros(0, np.int32), *sets], dtype=np.int32))

    @classmethod
    def whole(cls, tokens: int) -> Self:
        """Nothing was cut off."""
        return cls(np.zeros(tokens, np.int32), np.zeros(0, np.int32))

    @classmethod
    def joined(cls, parts: Iterable[TokenSets]) -> Self:
        token_sets = list(parts)
        return cls(
            np.concatenate([part.counts for part in token_sets]), np.concatenate([part.ids for part in token_sets])
        )

    def __len__(self) -> int:
        return len(self.counts)

    def first(self, tokens: int) -> Self:
        """Those of the first tokens."""
        counts = self.counts[:tokens]
        return type(self)(counts, self.ids[: counts.sum()])

    def where(self, kept: NDArray[np.bool_]) -> Self:
        """The same, but the whole vocabulary for tokens that are not `kept`."""
        return type(self)(np.where(kept, self.counts, 0).astype(np.int32), self.ids[np.repeat(kept, self.counts)])

    def take(self, tokens: NDArray[np.int64]) -> Self:
        """Those of some tokens, in their order."""
        ends = np.cumsum(self.counts, dtype=np.int64)
        return type(self).of([self.ids[ends[token] - self.counts[token] : ends[token]] for token in tokens.tolist()])
