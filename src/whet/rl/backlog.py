"""Groups ahead of the learner: places are opened in the order of the mix, whole batches are taken in the same mix.

The asynchronous loop's counterpart of `collector.py`, as pure as that: no asyncio, no clock, no I/O. A place belongs to
an environment, not to a task, so whoever is late delays nobody: a batch takes, of every environment, the groups that
were drawn first among those that are finished. What is left goes into the next batch.

    open() ─▶ in flight ──add──▶ ready ──take──▶ a batch
       ▲          │ turned away     │ too old (`max_off_policy_steps`)
       └──────────┴────◀────────────┘ the place is attempted again
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from whet.rl.group import Batch, Group, Tally
from whet.rl.judge import Judge


@dataclass(frozen=True, slots=True)
class Lead:
    """How far sampling may run ahead of the learner."""

    groups_per_batch: int
    max_async_level: int = 1
    oversampling_factor: float = 1.0
    max_off_policy_steps: int = 8

    def places(self, version: int) -> int:
        """Places that may have been opened in all while the sampler holds policy `version`.

        Batch n (counted from 0) is trained by a learner of version n. So at level 0 its places open with version n;
        each level lets them open one version earlier, and oversampling adds a part of the batch after that.
        """
        return self._groups(version + self.max_async_level + self.oversampling_factor)

    def first_places(self, version: int) -> int:
        """The same before a first batch has been taken: those of that batch alone.

        Nothing is learned until it is there, and whatever is sampled beside it makes it later.
        """
        return self._groups(version + self.oversampling_factor)

    def _groups(self, batches: float) -> int:
        return math.ceil(round(batches * self.groups_per_batch, 6))

    def too_old(self, sampled_by: int | None, version: int) -> bool:
        """Whether tokens of policy `sampled_by` may not be trained by a learner of `version` any more."""
        return sampled_by is not None and version - sampled_by > self.max_off_policy_steps


@dataclass(slots=True)
class Backlog:
    """Decides for each finished group, and when there is a batch."""

    lead: Lead
    judge: Judge = field(default_factory=Judge)
    opened: int = 0  # places opened so far, in this run and before a resume
    _began: bool = False  # whether a batch has been taken since the run was started or resumed
    _planned: list[int] = field(default_factory=list)  # environments of the places that no batch has taken, in order
    _ready: dict[int, dict[int, Group]] = field(default_factory=lambda: defaultdict(dict))  # environment -> place

    def may_open(self, version: int) -> bool:
        """Whether there may be one more place while the sampler holds policy `version`."""
        return self.opened < (self.lead.places(version) if self._began else self.lead.first_places(version))

    def open(self, environment: int) -> int:
        """A new place for a group of this environment, the next of the mix; returns its number."""
        self._planned.append(environment)
        self.opened += 1
        return self.opened - 1

    def add(self, group: Group, version: int) -> bool:
        """True when the group's place is filled; False when another of the same environment should be attempted."""
        if self.lead.too_old(group.oldest_version, version):
            self.judge.tally.rejected["too old"] += 1
            return False
        accepted = self.judge.decide(group)
        if accepted is None:
            return False
        self._ready[group.task.environment][group.slot] = accepted
        return True

    @property
    def ready(self) -> int:
        """Finished groups that wait for the learner."""
        return sum(map(len, self._ready.values()))

    @property
    def missing(self) -> int:
        """Groups that the next batch still waits for."""
        wanted = self._wanted()
        if len(self._planned) < self.lead.groups_per_batch:
            return self.lead.groups_per_batch - self.ready
        return sum(max(0, count - len(self._ready[environment])) for environment, count in wanted.items())

    def take(self) -> Batch | None:
        """The next batch, or None while groups of it are missing."""
        if len(self._planned) < self.lead.groups_per_batch or self.missing:
            return None
        groups: list[Group] = []
        for environment, count in self._wanted().items():
            ready = self._ready[environment]
            first = sorted(ready.values(), key=lambda group: group.id)[:count]
            for group in first:
                del ready[group.slot]
            groups += first
        del self._planned[: self.lead.groups_per_batch]
        self._began = True
        tally, self.judge.tally = self.judge.tally, Tally()
        return Batch(sorted(groups, key=lambda group: group.id), tally)

    def expire(self, version: int) -> list[Group]:
        """Take out the ready groups that have become too old: their places are to be attempted again."""
        old = [group for ready in self._ready.values() for group in ready.values() if self._is_old(group, version)]
        for group in old:
            del self._ready[group.task.environment][group.slot]
        self.judge.tally.rejected["too old"] += len(old)
        return old

    def waiting(self) -> list[Group]:
        """Finished groups that no batch has taken."""
        return [group for ready in self._ready.values() for group in ready.values()]

    def _is_old(self, group: Group, version: int) -> bool:
        return self.lead.too_old(group.oldest_version, version)

    def _wanted(self) -> Counter[int]:
        return Counter(self._planned[: self.lead.groups_per_batch])
