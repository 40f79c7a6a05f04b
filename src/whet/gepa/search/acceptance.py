"""Whether a proposal is better than its parent: a gate, a race, and one test that knows of both. Pure.

Rewards come in pairs, parent and candidate on one example. If both are equally good, then within each pair it is chance
which of the two rewards is whose; so swapping them, pair by pair, gives everything that could as well have been seen
(a sign-flip permutation test). The p-value of a proposal is the share of these worlds in which it would have passed the
gate, stayed in the race to its end and had at least the total it has:

    p  =  P(passes the gate)  *  P(stays in the race, and total >= the total seen)

It is accepted where p <= `level`. Because a world that leaves early counts as one that is not accepted, leaving early
pays for itself: it lowers the total that the end asks for. Nothing is assumed of the rewards, neither how they are
distributed nor that examples are alike, and nothing is drawn: the shares are counted.

    gate    the candidate's rewards on the minibatch add up to more than its parent's
    race    validation examples in rounds; after each but the last the candidate leaves where its lead
            is below a line that climbs from `start` to `end`, in standard deviations of the lead at the end
    test    p <= level

The parent's rewards on a minibatch that was reflected on are not all perfect, where perfect minibatches are passed
over: so worlds in which they are do not count (`gate_chance`).

Measured (`benchmarks/prompts.py`; minibatches of 3, 50 validation examples, 20,000 proposals each):

    an equal prompt is accepted     rewards of 0 and 1, p = 0.1, 0.3, 0.5, 0.7, 0.9: 1.9, 3.7, 4.0, 3.9, 3.2 %
                                    continuous ones: 4.6 to 5.0 %; by a higher sum on the minibatch: 21 to 76 %
    one better by 0.1, 0.2, 0.3     16, 40, 65 % (from p = 0.5); continuous, standard deviation 0.25: 43, 77, 90 %
    calls                           56 of one that is accepted; 10 to 22 of an equal one that is not, 8 of a worse one

A parent that was itself chosen for its validation rewards is harder to beat on these, so in a whole search fewer are
accepted: of equal prompts 1 to 2 %. `docs/design/gepa.md` says what that costs and where it pays.

Sources: E. Pitman, "Significance tests which may be applied to samples from any populations" (1937), swaps within
pairs; K. Lan, R. Simon and M. Halperin, "Stochastically curtailed tests in long-term clinical trials" (1982), leaving
when the end can hardly be reached.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

GRID = 120
"""Differences are rounded to this share of the largest one, so that totals can be counted. Rewards of 0 and 1, or in
halves, thirds, quarters, fifths, sixths, eighths or tenths, are not changed by it."""
NEARLY = 1e-9


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of a race."""

    accepted: bool
    differences: list[float]  # candidate less parent, as far as the race went
    p_value: float | None  # None for a candidate that left


@dataclass(frozen=True, slots=True)
class Criterion:
    """What a proposal has to show."""

    level: float = 0.05  # of false acceptance of an equal prompt, gate and race included
    shares: tuple[float, ...] = (0.1, 0.2, 0.4, 0.7)  # of the validation examples, after which the race looks
    start: float = -0.2  # the line's height before the first example
    end: float = 0.7  # ... and after the last

    def looks(self, total: int) -> list[int]:
        """How many validation examples have been seen at each look; `total` itself is the test's."""
        return sorted({look for share in self.shares if 0 < (look := round(share * total)) < total})

    def judge(self, total: int, chance: float, compare_on: Callable[[int, int], Sequence[float]]) -> Judgement:
        """Race a candidate that has passed the gate.

        Args:
            total: validation examples that there are.
            chance: of the gate, see `gate_chance`.
            compare_on: returns the differences, candidate less parent, of a round: positions `begin` to `end` of the
                race's order.
        """
        differences: list[float] = []
        for begin, end in itertools.pairwise([0, *self.looks(total), total]):
            differences += compare_on(begin, end)
            if end < total and self.leaves(differences, total):
                return Judgement(False, differences, None)
        p_value = self.p_value(differences, chance)
        return Judgement(p_value <= self.level, differences, p_value)

    def leaves(self, differences: Sequence[float], total: int) -> bool:
        """Whether a candidate leaves the race with these differences, of `total` that there could be."""
        return self._below(sum(differences), math.fsum(d * d for d in differences), len(differences), total)

    def p_value(self, differences: Sequence[float], chance: float) -> float:
        """Of a candidate at the end of its race: the share of all ways to swap in which it would have got as far.

        Of two equal leads at the end, the one that was higher at the last look has got further. Rewards of 0 and 1 have
        many equal leads, and a test that could not separate them would reject more than its level requires.

        Args:
            differences: candidate less parent, in the race's order.
            chance: of the gate, see `gate_chance`.
        """
        steps, looks = whole(differences), self.looks(len(differences))
        shares: dict[int, float] = {0: 1.0}
        seen, lead, squares = 0, 0, 0
        for look in looks:
            round_, seen = steps[seen:look], look
            lead, squares = lead + sum(round_), squares + sum(step * step for step in round_)
            shares = _swapped(round_, shares)
            shares = {x: share for x, share in shares.items() if not self._below(x, squares, seen, len(steps))}
            if lead not in shares:  # rounding: it was just above the line
                return 1.0
        last = _swapped(steps[seen:], {0: 1.0})
        needed = lead + sum(steps[seen:])
        above = _above(last)
        further = math.fsum(share * above(needed - x) for x, share in shares.items())
        as_far = math.fsum(share * last.get(needed - x, 0.0) for x, share in shares.items() if x >= lead)
        return chance * (further + as_far)

    def _below(self, lead: float, squares: float, seen: int, total: int) -> bool:
        """Whether a lead is below the line. A lead of n swapped pairs has a variance of the sum of their squares."""
        share = seen / total
        line = self.start + (self.end - self.start) * share
        return lead < line * math.sqrt(squares / share) - NEARLY


def gate(parent: Sequence[float], candidate: Sequence[float]) -> bool:
    """Whether a proposal is worth a race, by its minibatch: what it gains there is more than what it loses."""
    return sum(whole(differences_of(parent, candidate))) > 0


def gate_chance(parent: Sequence[float], candidate: Sequence[float], perfect: float | None) -> float:
    """The share of all ways to swap in which the gate is passed, of those that could have been seen.

    Args:
        parent: rewards on the minibatch.
        candidate: the same, of the proposal.
        perfect: a parent with only rewards this high would not have been reflected on; None where it would.
    """
    shares = {(0, perfect is not None): 1.0}  # by lead, and by whether the parent has been perfect so far
    for step, p, c in zip(whole(differences_of(parent, candidate)), parent, candidate, strict=True):
        after: dict[tuple[int, bool], float] = {}
        for (lead, flawless), share in shares.items():
            for way, reward in ((step, p), (-step, c)):
                key = lead + way, flawless and perfect is not None and reward >= perfect
                after[key] = after.get(key, 0.0) + share / 2
        shares = after
    seen = {key: share for key, share in shares.items() if not key[1]}
    return math.fsum(share for (lead, _), share in seen.items() if lead > 0) / math.fsum(seen.values())


def _swapped(steps: Sequence[int], shares: dict[int, float]) -> dict[int, float]:
    """Leads after these pairs and the share of each, from those before: every pair is swapped or not.

    Leads are counted, not ways to swap: of those there are 2^n, but a lead is one of 2 * n * GRID + 1 whole numbers.
    """
    for step in filter(None, steps):
        after: dict[int, float] = {}
        for lead, share in shares.items():
            after[lead + step] = after.get(lead + step, 0.0) + share / 2
            after[lead - step] = after.get(lead - step, 0.0) + share / 2
        shares = after
    return shares


def _above(shares: dict[int, float]) -> Callable[[int], float]:
    """The share of leads above a lead, quickly."""
    leads = sorted(shares)
    sums = [*itertools.accumulate((shares[lead] for lead in reversed(leads)), initial=0.0)]
    return lambda lead: sums[len(leads) - bisect.bisect_right(leads, lead)]


def differences_of(parent: Sequence[float], candidate: Sequence[float]) -> list[float]:
    return [c - p for p, c in zip(parent, candidate, strict=True)]


def whole(differences: Sequence[float]) -> list[int]:
    """Differences as whole numbers, the largest being `GRID`."""
    largest = max(map(abs, differences), default=0.0)
    return [round(d / largest * GRID) for d in differences] if largest else [0] * len(differences)


def race_order(total: int, seed: int, number: int) -> list[int]:
    """The order of the validation examples for one proposal: another for each, the same in every process."""
    order = list(range(total))
    random.Random(f"{seed}/{number}").shuffle(order)
    return order
