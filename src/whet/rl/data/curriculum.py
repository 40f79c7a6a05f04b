"""Which task comes next: the exact mix of environments, and a fresh shuffle of each one's tasks every epoch.

Pure and small: no dataset is touched here, only its length. The same seed and the same rewards give the same order for
ever, and the whole state is a few integers and the tasks that rest (`state_dict`), so a resumed run continues with the
task that would have come next. `MixedCurriculum` is the built-in one; `buffer.curriculum` names another by its import
path.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from whet.errors import RunError
from whet.rl.data.difficulty import DifficultyRule, Resting
from whet.rl.data.mix import Mix


@dataclass(frozen=True, slots=True)
class DrawnTask:
    """A row of a dataset, and the number of the draw, which is unique within the run."""

    number: int  # 0 for the first task drawn in a run, 1 for the next, ...
    environment: int
    index: int  # row of the environment's dataset
    epoch: int  # how often the dataset had been gone through before


@dataclass(frozen=True, slots=True)
class Pool:
    """What the curriculum knows of one environment."""

    name: str
    size: int  # tasks in its dataset
    weight: float = 1.0


class Curriculum(Protocol):
    """Decides which task is attempted next. Made with the pools, in the order of `[[env]]`, and the seed."""

    def next_task(self) -> DrawnTask:
        """The next task of the mix. `number` grows by one with every draw, replacements included."""
        ...

    def next_of(self, environment: int) -> DrawnTask:
        """The next task of one environment: a replacement that must not change the mix."""
        ...

    def observe(self, task: DrawnTask, mean_reward: float) -> None:
        """A group of this task was scored, whether or not it is trained."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides about the tasks to come, as JSON."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises `RunError` where the state belongs to other environments."""
        ...


class MixedCurriculum:
    """Draws tasks from pools in an exact, seeded order; with a `rule`, tasks that are too easy or too hard rest."""

    def __init__(self, pools: Sequence[Pool], *, seed: int, rule: DifficultyRule | None = None) -> None:
        assert pools, "a curriculum needs at least one environment"
        self._pools = list(pools)
        self._seed = seed
        self._mix = Mix([pool.weight for pool in pools])
        self._drawn = [0] * len(pools)  # tasks taken from each environment, replacements included
        self._walked = [0] * len(pools)  # places of the shuffled epochs gone over, tasks that rest included
        self._resting = None if rule is None else [Resting(rule) for _ in pools]
        self._orders: dict[int, tuple[int, list[int]]] = {}

    def next_task(self) -> DrawnTask:
        return self.next_of(self._mix.next())

    def next_of(self, environment: int) -> DrawnTask:
        index = self._resting_task(environment)
        if index is None:
            index = self._walk(environment)
        number = sum(self._drawn)
        self._drawn[environment] += 1
        # The walk is one place past this task's; a task that rested belongs to the epoch that the walk is in.
        epoch = max(0, self._walked[environment] - 1) // self._pools[environment].size
        return DrawnTask(number, environment, index, epoch)

    def observe(self, task: DrawnTask, mean_reward: float) -> None:
        if self._resting is not None:
            self._resting[task.environment].observe(task.index, mean_reward)

    def _resting_task(self, environment: int) -> int | None:
        if self._resting is None:
            return None
        rest = self._resting[environment]
        due = rest.due()
        return rest.any() if due is None and len(rest) == self._pools[environment].size else due

    def _walk(self, environment: int) -> int:
        """The next task of the shuffled epochs that does not rest; there is one."""
        size = self._pools[environment].size
        while True:
            epoch, position = divmod(self._walked[environment], size)
            self._walked[environment] += 1
            index = self._order(environment, epoch)[position]
            if self._resting is None or self._resting[environment].kind(index) == "normal":
                return index

    def _order(self, environment: int, epoch: int) -> list[int]:
        cached = self._orders.get(environment)
        if cached is None or cached[0] != epoch:
            order = list(range(self._pools[environment].size))
            random.Random(f"{self._seed}/{self._pools[environment].name}/{epoch}").shuffle(order)
            self._orders[environment] = cached = (epoch, order)
        return cached[1]

    def state_dict(self) -> dict[str, Any]:
        return {
            "pools": [[pool.name, pool.size] for pool in self._pools],
            "mixed": list(self._mix.turns),
            "drawn": list(self._drawn),
            "walked": list(self._walked),
            "resting": None if self._resting is None else [rest.state_dict() for rest in self._resting],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises `RunError` when the environments are not those the state was saved with."""
        here = [[pool.name, pool.size] for pool in self._pools]
        if state["pools"] != here:
            raise RunError(
                f"the checkpoint was trained on {_describe(state['pools'])}, this config has {_describe(here)}: "
                "resume with the environments and arguments of the checkpoint"
            )
        self._mix.turns = list(state["mixed"])
        self._drawn = list(state["drawn"])
        self._walked = list(state["walked"])
        if self._resting is not None:
            for rest, saved in zip(self._resting, state["resting"], strict=True):
                rest.load_state_dict(saved)


def _describe(pools: list[list[Any]]) -> str:
    return ", ".join(f"{name} ({size} tasks)" for name, size in pools)
