"""A curriculum that is a mistake: a step of nothing but the first environment, then one of nothing but the second."""

from __future__ import annotations

from whet.rl.data.curriculum import DrawnTask, MixedCurriculum

GROUPS = 4


class ByTurns(MixedCurriculum):
    drawn = 0

    def next_task(self) -> DrawnTask:
        environment = self.drawn // GROUPS % 2
        self.drawn += 1
        return self.next_of(environment)
