"""Online difficulty: which tasks of an environment rest because they have become too easy or still are too hard.

    every task ──group's mean reward──▶  >= easy_threshold: easy    <= hard_threshold: hard    else: normal

Normal tasks come in the order of the curriculum. Of the tasks that rest, a fixed share of every batch comes back
(`easy_fraction`, `hard_fraction`; longest rested first), so that what was forgotten, or has come within reach, is
noticed: the next group's mean decides again where a task belongs. Pure; no dataset and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal

from pydantic import Field

from whet.config import StrictModel
from whet.rl.data.mix import Mix

Kind = Literal["normal", "easy", "hard"]
KINDS: tuple[Kind, ...] = ("normal", "easy", "hard")


class DifficultyRule(StrictModel):
    """Where a task belongs, and the share of draws each kind of task gets."""

    easy_threshold: float = Field(1.0, description="Mean reward of a group at or above which its task is too easy.")
    hard_threshold: float = Field(0.0, description="Mean reward of a group at or below which its task is too hard.")
    easy_fraction: float = Field(0.0, ge=0, le=1, description="Share of the draws that are tasks that are too easy.")
    hard_fraction: float = Field(0.0, ge=0, le=1, description="Share of the draws that are tasks that are too hard.")

    def kind(self, mean_reward: float) -> Kind:
        if mean_reward >= self.easy_threshold:
            return "easy"
        return "hard" if mean_reward <= self.hard_threshold else "normal"

    def shares(self) -> list[Fraction]:
        easy, hard = Fraction(str(self.easy_fraction)), Fraction(str(self.hard_fraction))
        return [1 - easy - hard, easy, hard]


class Resting:
    """The tasks of one environment that rest, and which kind of task is due."""

    def __init__(self, rule: DifficultyRule) -> None:
        self.rule = rule
        self._mix = Mix(rule.shares())
        self._kind: dict[int, Kind] = {}  # tasks that are not normal, longest rested first

    def __len__(self) -> int:
        return len(self._kind)

    def kind(self, index: int) -> Kind:
        return self._kind.get(index, "normal")

    def observe(self, index: int, mean_reward: float) -> None:
        """A group of this task was scored."""
        kind = self.rule.kind(mean_reward)
        self._kind.pop(index, None)
        if kind != "normal":
            self._kind[index] = kind

    def due(self) -> int | None:
        """A resting task whose turn it is, which goes to the end of its queue; None for a normal one."""
        wanted = KINDS[self._mix.next()]
        return None if wanted == "normal" else self._longest(wanted)

    def any(self) -> int:
        """The longest rested task, as no normal one is left: a hard one first, which can still be learned."""
        found = self._longest("hard")
        if found is None:
            found = self._longest("easy")
        assert found is not None, "no task rests"
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"turns": self._mix.turns, "resting": [[index, kind] for index, kind in self._kind.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._mix.turns = list(state["turns"])
        self._kind = {int(index): kind for index, kind in state["resting"]}

    def _longest(self, wanted: Kind) -> int | None:
        index = next((index for index, kind in self._kind.items() if kind == wanted), None)
        if index is not None:
            self._kind[index] = self._kind.pop(index)
        return index
