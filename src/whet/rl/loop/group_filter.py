"""Whether a finished group may fill its place in a batch. Pure: no asyncio, no clock, no I/O.

    open ──accept──▶ filled                    every rollout scored, enough variance
      └────reject──▶ open (attempt + 1)        a rollout errored, or the rewards are all too alike

Groups with too little variance are kept aside. When a place has used up its attempts the best of those fills it: they
teach nothing, but they are honest samples and the batch stays exact. Where groups can become too old, those
that have are forgotten (`forget`). Errored groups never fill a place; when a place has had nothing else
the run stops with the error that was seen most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from whet.errors import TrainingError
from whet.rl.loop.group import Group, Rejection, Tally, describe_error

MAX_ATTEMPTS = 8
"""Groups tried for one place of a batch before it is filled with what there is, or the run stops."""


@dataclass(slots=True)
class Judge:
    """Decides for each finished group; what it turns away is counted in `tally`."""

    min_variance: float = 0.0
    max_attempts: int = MAX_ATTEMPTS
    tally: Tally = field(default_factory=Tally)
    _aside: dict[int, Group] = field(default_factory=dict)
    _attempts: Counter[int] = field(default_factory=Counter)
    _errored: Counter[int] = field(default_factory=Counter)  # attempts of a place in a row that had errored rollouts

    def decide(self, group: Group) -> Group | None:
        """What fills the group's place: the group, or the best that was tried there; None asks for another group.

        Raises `TrainingError` for a place whose groups all had errored rollouts.
        """
        place = group.slot
        self._attempts[place] += 1
        rejection = self._rejection(group)
        if rejection is None:
            self._forget(place)
            return group
        self.tally.rejected[rejection] += 1
        if self._attempts[place] < self.max_attempts:
            return None
        best = self._aside.get(place)
        if best is not None:
            self._forget(place)
        elif self._errored[place] >= self.max_attempts:
            raise TrainingError(self._hopeless(group))
        return best

    def forget(self, too_old: Callable[[Group], bool]) -> None:
        """Groups kept aside that may not be trained any more; a place out of attempts takes the next without errors."""
        self._aside = {place: group for place, group in self._aside.items() if not too_old(group)}

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
        aside = self._aside.get(group.slot)
        if aside is None or variance > float(aside.rewards_G.var()):
            self._aside[group.slot] = group
        return "too little variance"

    def _hopeless(self, group: Group) -> str:
        (_, message), count = self.tally.errors.most_common(1)[0]
        return (
            f"environment {group.environment}: {self.max_attempts} groups in a row had errored rollouts, so no batch "
            f"can be made. Most frequent error ({count} rollouts of this batch): {message}"
        )

    def _forget(self, place: int) -> None:
        self._aside.pop(place, None)
        del self._attempts[place], self._errored[place]
