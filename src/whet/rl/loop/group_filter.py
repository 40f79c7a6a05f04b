"""Whether a finished group may fill its slot of a batch. Pure: no asyncio, no clock, no I/O.

    open ──accept──▶ filled                    every rollout scored, enough variance
      └────reject──▶ open (attempt + 1)        a rollout errored, or the rewards are all too alike

The best group with too little variance is kept for its slot, and fills it when the slot's attempts are used up: it
teaches nothing, but it is an honest sample and the batch keeps its size. Where groups can become too old, kept groups
that have are dropped (`forget`). Errored groups never fill a slot. The run stops with the most frequent error when the
groups of a slot keep failing: when as many of their rollouts have, group after group, as `max_errored_groups` groups
hold. So a broken environment stops it after so many groups, and a rate that spares a group now and then does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from whet.errors import TrainingError
from whet.rl.loop.group import Group, Rejection, Tally, describe_error

MAX_ATTEMPTS = 8
"""Groups tried for one slot of a batch before it is filled with the best of them."""
MAX_ERRORED_GROUPS = 8
"""Default of `[buffer] max_errored_groups`."""


@dataclass(slots=True)
class GroupFilter:
    """Accepts or rejects each finished group; rejections are counted in `tally`."""

    min_variance: float = 0.0
    max_attempts: int = MAX_ATTEMPTS
    max_errored_groups: int = MAX_ERRORED_GROUPS
    tally: Tally = field(default_factory=Tally)
    _kept: dict[int, Group] = field(default_factory=dict)
    _attempts: Counter[int] = field(default_factory=Counter)
    _errored: Counter[int] = field(default_factory=Counter)  # consecutive attempts of a slot that had errored rollouts
    _failed: Counter[int] = field(default_factory=Counter)  # the errored rollouts of these attempts

    def decide(self, group: Group) -> Group | None:
        """What fills the group's slot: the group, or the best that was tried there; None: another group is needed.

        Raises `TrainingError` for a slot whose groups keep failing.
        """
        slot = group.slot
        self._attempts[slot] += 1
        rejection = self._rejection(group)
        if rejection is None:
            self._forget(slot)
            return group
        self.tally.rejected[rejection] += 1
        best = self._kept.get(slot) if self._attempts[slot] >= self.max_attempts else None
        if best is not None:
            self._forget(slot)
        elif slot not in self._kept and self._failed[slot] >= self.max_errored_groups * len(group.states):
            raise TrainingError(self._hopeless(group))
        return best

    def forget(self, too_old: Callable[[Group], bool]) -> None:
        """Drops kept groups that are too old to train; a slot out of attempts takes the next group without errors."""
        self._kept = {slot: group for slot, group in self._kept.items() if not too_old(group)}

    def _rejection(self, group: Group) -> Rejection | None:
        if group.errors:
            self._errored[group.slot] += 1
            self._failed[group.slot] += len(group.errors)
            self.tally.errored_rollouts += len(group.errors)
            self.tally.errors.update((group.environment, describe_error(error)) for error in group.errors)
            return "errored"
        self._errored[group.slot] = self._failed[group.slot] = 0
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
            f"environment {group.environment}: {self._errored[group.slot]} groups in a row had errored rollouts "
            f"({self._failed[group.slot]} in all), so no batch can be made. Most frequent error ({count} rollouts of "
            f"this batch): {message}. Correct its cause, or raise [buffer] max_errored_groups or max_retries."
        )

    def _forget(self, slot: int) -> None:
        self._kept.pop(slot, None)
        del self._attempts[slot], self._errored[slot], self._failed[slot]
