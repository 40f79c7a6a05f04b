"""Whether a finished group may fill its slot of a batch. Pure: no asyncio, no clock, no I/O.

    open ──accept──▶ filled                    every rollout scored, enough variance
      └────reject──▶ open (attempt + 1)        a rollout errored, or the rewards are all too alike

The best group with too little variance is kept for its slot, and fills it when the slot's attempts are used up: it
teaches nothing, but it is an honest sample and the batch keeps its size. Where groups can become too old, kept groups
that have are dropped (`forget`). Errored groups never fill a slot; when all attempts of a slot had errored rollouts
the run stops with the most frequent error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from whet.errors import TrainingError
from whet.rl.loop.group import Group, Rejection, Tally, describe_error

MAX_ATTEMPTS = 8
"""Groups tried for one slot of a batch before it is filled with the best of them, or the run stops."""


@dataclass(slots=True)
class GroupFilter:
    """Accepts or rejects each finished group; rejections are counted in `tally`."""

    min_variance: float = 0.0
    max_attempts: int = MAX_ATTEMPTS
    tally: Tally = field(default_factory=Tally)
    _kept: dict[int, Group] = field(default_factory=dict)
    _attempts: Counter[int] = field(default_factory=Counter)
    _errored: Counter[int] = field(default_factory=Counter)  # consecutive attempts of a slot that had errored rollouts

    def decide(self, group: Group) -> Group | None:
        """What fills the group's slot: the group, or the best that was tried there; None: another group is needed.

        Raises `TrainingError` for a slot whose groups all had errored rollouts.
        """
        slot = group.slot
        self._attempts[slot] += 1
        rejection = self._rejection(group)
        if rejection is None:
            self._forget(slot)
            return group
        self.tally.rejected[rejection] += 1
        if self._attempts[slot] < self.max_attempts:
            return None
        best = self._kept.get(slot)
        if best is not None:
            self._forget(slot)
        elif self._errored[slot] >= self.max_attempts:
            raise TrainingError(self._hopeless(group))
        return best

    def forget(self, too_old: Callable[[Group], bool]) -> None:
        """Drops kept groups that are too old to train; a slot out of attempts takes the next group without errors."""
        self._kept = {slot: group for slot, group in self._kept.items() if not too_old(group)}

    def _rejection(self, group: Group) -> Rejection | None:
        if group.errors:
            self._errored[group.slot] += 1
            self.tally.errored_rollouts += len(group.errors)
            self.tally.errors.update((group.environment, describe_error(error)) for error in group.errors)
            return "errored"
        self._errored[group.slot] = 0
        variance = float(group.rewards_G.var())
        if variance >= self.min_variance:
            return None
        kept = self._kept.get(group.slot)
        if kept is None or variance > float(kept.rewards_G.var()):
            self._kept[group.slot] = group
        return "too little variance"

    def _hopeless(self, group: Group) -> str:
        (_, message), count = self.tally.errors.most_common(1)[0]
        return (
            f"environment {group.environment}: {self.max_attempts} groups in a row had errored rollouts, so no batch "
            f"can be made. Most frequent error ({count} rollouts of this batch): {message}"
        )

    def _forget(self, slot: int) -> None:
        self._kept.pop(slot, None)
        del self._attempts[slot], self._errored[slot]
