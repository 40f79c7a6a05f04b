"""How many calls may still be begun, and for how many dollars. Pure: no files, no clocks, no event loop.

promise n calls ──▶ begin each ──▶ it ends
      └─ refused as a whole where they do not all fit

`begun` counts every rollout that was ever begun, by this process or an earlier one: it never exceeds `max_calls`.
`left` is counted in the order of the search's requests, so that a repeated search sees the same values: a call that is
answered from the log counts when it is requested, as often as it was begun.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from whet.gepa.types import BudgetSpent, Phase


class CallBudget:
    """Calls. Those of the final comparison are reserved from the search."""

    def __init__(
        self, max_calls: int, reserved: int = 0, begun: Mapping[str, int] | None = None, confirming: int = 0
    ) -> None:
        """`begun` are the calls of earlier processes by key; `confirming` of these belong to the final comparison."""
        self.max_calls, self.reserved = max_calls, max(reserved, confirming)
        self.begun = sum((begun or {}).values())
        self.spent = 0
        """Calls that the requests so far have taken."""
        self._before = dict(begun or {})
        self.promised = 0
        self.confirming = confirming

    @property
    def left(self) -> int:
        """Calls that the search may still request."""
        return max(0, self.max_calls - self.reserved - self.spent)

    def room(self, phase: Phase) -> int:
        """Calls that can really still be begun in a phase."""
        room = self.max_calls - self.begun - self.promised
        if phase == "confirmation":
            return room
        # A search that is resumed after a comparison has already used part of the calls that are reserved.
        kept_back = max(0, self.reserved - self.confirming)
        return room - kept_back

    def promise(self, calls: int, phase: Phase) -> PromisedCalls:
        """Keep room for calls. Raises `BudgetSpent` where they do not all fit; then none is kept."""
        promised = PromisedCalls(self, phase)
        promised.add(calls)
        return promised

    def recall(self, keys: Iterable[str]) -> None:
        """Calls that an earlier process requested are requested again: what it began for them counts now."""
        self.spent += sum(self._before.pop(key, 0) for key in keys)


class PromisedCalls:
    """The calls of one request that the budget keeps room for and that are still to be begun."""

    def __init__(self, budget: CallBudget, phase: Phase) -> None:
        self._budget, self.phase, self._calls = budget, phase, 0

    def add(self, calls: int) -> None:
        """Keep room for more, such as a call to repeat. Raises `BudgetSpent` where they do not all fit."""
        room = max(0, self._budget.room(self.phase))
        if calls > room:
            raise BudgetSpent(f"{calls} calls do not fit into the {room} that are left")
        self._calls += calls
        self._budget.promised += calls

    def begin(self) -> None:
        """One of them is begun."""
        assert self._calls > 0
        budget = self._budget
        self._calls -= 1
        budget.promised -= 1
        budget.begun += 1
        budget.spent += 1
        budget.confirming += self.phase == "confirmation"
        assert budget.begun <= budget.max_calls

    def release(self) -> None:
        """The rest will not be begun."""
        self._budget.promised -= self._calls
        self._calls = 0


class CostCap:
    """Dollars. No call is begun once they are spent; those in flight are estimated at the most expensive one so far."""

    def __init__(self, most: float | None) -> None:
        self.most = most
        self._highest: float | None = None
        self._sum = 0.0
        self._calls = 0

    def learn(self, cost: float) -> None:
        """What a call has cost."""
        self._highest = max(self._highest or 0.0, cost)
        self._sum += cost
        self._calls += 1

    @property
    def typical(self) -> float:
        """The mean of the calls so far."""
        return self._sum / self._calls if self._calls else 0.0

    def allows(self, spent: float, in_flight: int, *, kept_back: int = 0) -> bool:
        """Whether one more may be begun. `kept_back` are calls of the final comparison, which has to be paid for too.

        The cost of a call is unknown until one has ended, so the first is made alone.
        """
        if self.most is None:
            return True
        if self._highest is None:
            return spent < self.most and in_flight == 0
        return spent + in_flight * self._highest < self.most - kept_back * self.typical

    def affords(self, spent: float, calls: int, *, kept_back: int = 0) -> bool:
        """Whether so many calls together will probably stay within."""
        if self.most is None or calls == 0:
            return True
        return spent + (calls + kept_back) * self.typical <= self.most and spent < self.most


def least_calls(*, num_val: int, minibatch_size: int, held_out: int) -> int:
    """The fewest calls for one whole round: the seed on all of val, one proposal that is accepted, the comparison."""
    return num_val + 2 * minibatch_size + num_val + 2 * held_out


def pairs_for(max_calls: int, confirm_calls: int | None) -> int:
    """Held-out examples that the final comparison pays for: one call of each of two candidates on every one."""
    return (math.floor(max_calls / 5) if confirm_calls is None else confirm_calls) // 2
