"""Finished groups in, one exact batch out: the synchronous loop's. A pure state machine over `group_filter.py`.

A batch is planned as slots, one group each; a group that is turned away leaves its slot open for a replacement.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from whet.rl.loop.group import Batch, Group
from whet.rl.loop.group_filter import GroupFilter


@dataclass(slots=True)
class Collector:
    """Decides for each finished group of one batch; `batch()` is there once every slot is filled."""

    slots: int
    group_filter: GroupFilter = field(default_factory=GroupFilter)
    _filled: dict[int, Group] = field(default_factory=dict)

    def add(self, group: Group) -> bool:
        """True when the group's slot is filled now; False when it wants another group of the same environment."""
        assert group.slot not in self._filled, f"slot {group.slot} was filled twice"
        accepted = self.group_filter.decide(group)
        if accepted is None:
            return False
        self._filled[group.slot] = accepted
        return True

    @property
    def filled(self) -> int:
        return len(self._filled)

    def batch(self) -> Batch:
        """The groups in slot order, whatever the order in which they finished."""
        assert self.filled == self.slots, f"{self.filled} of {self.slots} slots are filled"
        return Batch([self._filled[slot] for slot in range(self.slots)], self.group_filter.tally)
