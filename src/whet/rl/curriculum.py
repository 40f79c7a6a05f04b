"""Which task comes next: the exact mix of environments, and a fresh shuffle of each one's tasks every epoch.

Pure and small: no dataset is touched here, only its length. The same seed gives the same order for ever, and the whole
state fits in a few integers (`state_dict`), so a resumed run goes on with the task that would have come next.

The mix is Tijdeman's chairman assignment (R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32,
1980): after n tasks every environment has been drawn within one of `n * share` times, for every n.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from whet.errors import RunError


@dataclass(frozen=True, slots=True)
class Task:
    """A place in a dataset, and the number of the draw, which no other task of the run has."""

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


class Curriculum:
    """Draws tasks from pools in an exact, seeded order."""

    def __init__(self, pools: Sequence[Pool], *, seed: int) -> None:
        assert pools, "a curriculum needs at least one environment"
        self._pools = list(pools)
        self._seed = seed
        weights = [Fraction(pool.weight) for pool in pools]
        self._shares = [weight / sum(weights) for weight in weights]
        self._mixed = [0] * len(pools)  # turns given to each environment by the mix
        self._drawn = [0] * len(pools)  # tasks taken from each environment, replacements included
        self._orders: dict[int, tuple[int, list[int]]] = {}

    def next_task(self) -> Task:
        """The next task of the mix."""
        environment = self._next_environment()
        self._mixed[environment] += 1
        return self.next_of(environment)

    def next_of(self, environment: int) -> Task:
        """The next task of one environment: a replacement that must not change the mix."""
        size = self._pools[environment].size
        epoch, position = divmod(self._drawn[environment], size)
        number = sum(self._drawn)
        self._drawn[environment] += 1
        return Task(number, environment, self._order(environment, epoch)[position], epoch)

    def _next_environment(self) -> int:
        turn = sum(self._mixed) + 1
        eligible = [i for i, share in enumerate(self._shares) if self._mixed[i] < turn * share]
        # Of those that would not run ahead of their share, the one whose next turn is due first.
        return min(eligible, key=lambda i: ((self._mixed[i] + 1) / self._shares[i], i))

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
            "mixed": list(self._mixed),
            "drawn": list(self._drawn),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises `RunError` when the environments are not those the state was saved with."""
        here = [[pool.name, pool.size] for pool in self._pools]
        if state["pools"] != here:
            raise RunError(
                f"the checkpoint was trained on {_describe(state['pools'])}, this config has {_describe(here)}: "
                "resume with the environments and arguments of the checkpoint"
            )
        self._mixed = list(state["mixed"])
        self._drawn = list(state["drawn"])


def _describe(pools: list[list[Any]]) -> str:
    return ", ".join(f"{name} ({size} tasks)" for name, size in pools)
