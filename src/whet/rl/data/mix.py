"""Turns in exact shares: after n turns each taker has had within one of `n * share` of them, for every n.

Tijdeman's chairman assignment (R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32, 1980).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


class Mix:
    """Gives out turns to `len(weights)` takers. `turns` is the whole state: how many each has had."""

    def __init__(self, weights: Sequence[Fraction | float]) -> None:
        exact = [Fraction(weight) for weight in weights]
        assert sum(exact) > 0, "at least one share is above 0"
        self._shares = [weight / sum(exact) for weight in exact]
        self.turns = [0] * len(exact)

    def next(self) -> int:
        """Whose turn it is."""
        turn = sum(self.turns) + 1
        eligible = [i for i, share in enumerate(self._shares) if self.turns[i] < turn * share]
        # Of those that would not run ahead of their share, the one whose next turn is due first.
        chosen = min(eligible, key=lambda i: ((self.turns[i] + 1) / self._shares[i], i))
        self.turns[chosen] += 1
        return chosen
