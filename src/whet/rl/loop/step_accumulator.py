"""What one optimiser step is made of, as it comes together: groups in parts, and what the learner saw of each."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from functools import reduce

from whet.rl.data.assembly import Assembled
from whet.rl.data.samples import TokenSequence
from whet.rl.learner.protocol import LossOutput
from whet.rl.loop.group import Batch, Group, Part, Tally


@dataclass(slots=True)
class Learned:
    """Parts in the order in which they were learned; a batch that comes at once is one part."""

    groups: list[Group] = field(default_factory=list)
    parts: list[Assembled] = field(default_factory=list)
    losses: list[LossOutput] = field(default_factory=list)
    tally: Tally | None = None  # there once the batch is whole
    wait_s: float = 0.0  # of the learner, for rollouts

    def add(self, part: Part, assembled: Assembled, loss: LossOutput) -> None:
        self.groups += part.groups
        self.parts.append(assembled)
        self.losses.append(loss)
        self.tally = part.tally

    @property
    def batch(self) -> Batch:
        assert self.tally is not None, "the last part has not come yet"
        return Batch(self.groups, self.tally)

    @property
    def loss(self) -> LossOutput:
        """Of the whole batch."""
        return reduce(operator.add, self.losses)

    @property
    def advantages(self) -> list[list[float]]:
        """Of each rollout of each group."""
        return [advantages_G for part in self.parts for advantages_G in part.advantages]

    @property
    def sequences(self) -> list[TokenSequence]:
        """As sampled, those included that carry no loss."""
        return [sequence for part in self.parts for sequence in part.sequences]
