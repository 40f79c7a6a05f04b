"""Groups ahead of the learner: slots are opened in the order of the mix, batches are filled in the same mix.

Pure: no asyncio, no clock, no I/O. A slot belongs to
an environment, not to a task, so a late group delays no other: a batch takes, of every environment, the groups that
were drawn first among those that are finished. What is left goes into the next batch.

    open() ─▶ in flight ──add──▶ ready ──take──▶ a part of the batch that is being filled
       ▲          │ turned away     │ too old (`max_off_policy_steps`)
       └──────────┴────◀────────────┘ the slot is attempted again
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from whet.rl.data.metrics import lengths_of
from whet.rl.loop.group import BatchPart, Group, GroupFilter, Tally

PARTS = 4
"""In which a batch is learned while it is sampled: what is left to do once its last group is there is a quarter."""


@dataclass(frozen=True, slots=True)
class Lead:
    """How far sampling may run ahead of the learner."""

    groups_per_batch: int
    max_async_level: int = 1
    oversampling_factor: float = 1.0
    max_off_policy_steps: int = 8
    parts: int = 1  # in which a batch may be taken, about alike; the learner has them one after the other

    @property
    def in_flight(self) -> int:
        """Groups that are sampled at once, at most: more of them would only be older when they are learned."""
        return self._groups(max(1.0, self.oversampling_factor))

    @property
    def groups_per_part(self) -> int:
        return math.ceil(self.groups_per_batch / self.parts)

    def slots(self, version: int) -> int:
        """Places that may have been opened in all while the sampler holds policy `version`.

        Batch n (counted from 0) is trained by a learner of version n. So at level 0 and factor 1 its slots open with
        version n; each level lets them open one version earlier, and the factor says how much of the last batch.
        """
        return self._groups(version + self.max_async_level + self.oversampling_factor)

    def first_slots(self, version: int) -> int:
        """The same before the groups of a first batch are there: its own, and what is begun beyond a whole batch.

        Nothing is learned until it is there, and whatever else is sampled meanwhile makes it later.
        """
        return self._groups(version) + self.in_flight

    def _groups(self, batches: float) -> int:
        return math.ceil(round(batches * self.groups_per_batch, 6))

    def too_old(self, sampled_by: int | None, version: int) -> bool:
        """Whether tokens of policy `sampled_by` may not be trained by a learner of `version` any more."""
        return sampled_by is not None and version - sampled_by > self.max_off_policy_steps


@dataclass(slots=True)
class RolloutBuffer:
    """Decides for each finished group, and when there is a batch."""

    lead: Lead
    group_filter: GroupFilter = field(default_factory=GroupFilter)
    opened: int = 0  # slots opened so far, in this run and before a resume
    _began: bool = False  # whether a batch has been complete since the run was started or resumed
    _planned: list[int] = field(default_factory=list)  # environments of the slots, from the first of this batch on
    _taken: list[Group] = field(default_factory=list)  # of the batch that is being filled
    _ready: dict[int, dict[int, Group]] = field(default_factory=lambda: defaultdict(dict))  # environment -> slot

    def may_open(self, version: int) -> bool:
        """Whether there may be one more slot while the sampler holds policy `version`."""
        in_flight = len(self._planned) - len(self._taken) - self.ready
        slots = self.lead.slots(version) if self._began else self.lead.first_slots(version)
        return in_flight < self.lead.in_flight and self.opened < slots

    def open(self, environment: int) -> int:
        """A new slot for a group of this environment, the next of the mix; returns its number."""
        self._planned.append(environment)
        self.opened += 1
        return self.opened - 1

    def add(self, group: Group, version: int) -> bool:
        """True when the group's slot is filled; False when another of the same environment should be attempted."""
        if self.lead.too_old(group.oldest_version, version):
            self._lose([group])
            return False
        # An earlier group may fill the slot.
        self.group_filter.forget(lambda kept: self._is_old(kept, version))
        accepted = self.group_filter.decide(group)
        if accepted is None:
            return False
        self._ready[group.task.environment][group.slot] = accepted
        self._began = self._began or not self.missing
        return True

    @property
    def ready(self) -> int:
        """Finished groups that wait for the learner."""
        return sum(map(len, self._ready.values()))

    @property
    def missing(self) -> int:
        """Groups that the batch which is being filled still waits for."""
        there = sum(min(count, len(self._ready[environment])) for environment, count in self._wanted().items())
        return self.lead.groups_per_batch - len(self._taken) - there

    def take(self) -> BatchPart | None:
        """The next part of the batch that is being filled; None while too few groups of it are ready."""
        missing = self.missing
        there = self.lead.groups_per_batch - len(self._taken) - missing
        if missing and there < self.lead.groups_per_part:
            return None
        groups: list[Group] = []
        for environment, count in self._wanted().items():
            ready = self._ready[environment]
            first = sorted(ready.values(), key=lambda group: group.id)[:count]
            for group in first:
                del ready[group.slot]
            groups += first
        groups.sort(key=lambda group: group.id)
        self._taken += groups
        return BatchPart(groups, None if missing else self._end_of_batch())

    def _end_of_batch(self) -> Tally:
        del self._planned[: self.lead.groups_per_batch]
        self._taken = []
        tally, self.group_filter.tally = self.group_filter.tally, Tally()
        return tally

    def expire(self, version: int) -> list[Group]:
        """Take out the ready groups that have become too old: their slots are to be attempted again."""
        old = [group for ready in self._ready.values() for group in ready.values() if self._is_old(group, version)]
        for group in old:
            del self._ready[group.task.environment][group.slot]
        self._lose(old)
        return old

    def _lose(self, old: Sequence[Group]) -> None:
        self.group_filter.tally.rejected["too old"] += len(old)
        self.group_filter.tally.unused_rollouts += sum(len(group.states) for group in old)
        self.group_filter.tally.lost_lengths += lengths_of(old)

    def waiting(self) -> list[Group]:
        """Finished groups that are not in a whole batch yet."""
        return self._taken + self.ready_groups()

    def ready_groups(self) -> list[Group]:
        """Finished groups that wait for the learner, in the order of the draws."""
        groups = [group for ready in self._ready.values() for group in ready.values()]
        return sorted(groups, key=lambda group: group.id)

    def _is_old(self, group: Group, version: int) -> bool:
        return self.lead.too_old(group.oldest_version, version)

    def _wanted(self) -> Counter[int]:
        """Groups by environment that the batch which is being filled has not taken, as far as it is planned."""
        planned = Counter(self._planned[: self.lead.groups_per_batch])
        return planned - Counter(group.task.environment for group in self._taken)
