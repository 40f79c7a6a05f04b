"""Which task comes next: the exact mix of environments, and a fresh shuffle of each one's tasks every epoch.

Pure and small: no dataset is touched here, only its length. The same seed and the same rewards give the same order for
ever, and the whole state is a few integers and the tasks that rest (`state_dict`), so a resumed run continues with the
task that would have come next. `MixedCurriculum` is the built-in one; `buffer.curriculum` names another by its import
path.

`Mix`: turns in exact shares: after n turns each taker has had within one of `n * share` of them, for every n.

Tijdeman's chairman assignment (R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32, 1980).

`Resting`: which tasks of an environment rest because they have become too easy or still are too hard.

    every task ──group's mean reward──▶  >= easy_threshold: easy    <= hard_threshold: hard    else: normal

Normal tasks come in the order of the curriculum. Of the tasks that rest, a fixed share of every batch comes back
(`easy_fraction`, `hard_fraction`; longest rested first), so that what was forgotten, or has come within reach, is
noticed: the next group's mean decides again where a task belongs. Pure; no dataset and no clock.

`[buffer]`: which tasks are drawn, and which groups may join a batch; the curriculum it describes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, Protocol, Self

from pydantic import Field, model_validator

from whet.config import StrictModel
from whet.errors import ConfigError, RunError
from whet.tasksets.refs import resolve_function

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
        task = self._longest("hard")
        if task is None:
            task = self._longest("easy")
        assert task is not None, "no task rests"
        return task

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


class Mix:
    """Gives out turns to `len(weights)` takers. `turns` is the whole state: how many each has had."""

    def __init__(self, weights: Sequence[Fraction | float]) -> None:
        exact = [Fraction(weight) for weight in weights]
        assert sum(exact) > 0, "at least one share is above 0"
        self._shares = [weight / sum(exact) for weight in exact]
        self.turns = [0] * len(exact)

    def next(self) -> int:
        """Whose turn it is."""
        turn = sum(self.turns) + 1
        eligible = [i for i, share in enumerate(self._shares) if self.turns[i] < turn * share]
        # Of those that would not run ahead of their share, the one whose next turn is due first.
        chosen = min(eligible, key=lambda i: ((self.turns[i] + 1) / self._shares[i], i))
        self.turns[chosen] += 1
        return chosen


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

    def next_of(self, environment: int) -> DrawnTask:
        """The next task of one environment: a replacement that must not change the mix."""

    def observe(self, task: DrawnTask, mean_reward: float) -> None:
        """A group of this task was scored, whether or not it is trained."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides about the tasks to come, as JSON."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises `RunError` where the state belongs to other environments."""


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
        # The walk is one position past this task's; a task that rested belongs to the epoch that the walk is in.
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


METHODS = ("next_task", "next_of", "observe", "state_dict", "load_state_dict")


class BufferConfig(DifficultyRule):
    """`[buffer]`: which tasks are drawn, and which groups may join a batch."""

    env_ratios: tuple[float, ...] = Field(
        (), description="Shares of the groups of a batch, one for each [[env]]; says the same as their weights."
    )
    difficulty_threshold: float = Field(
        0.0, ge=0, description="Groups whose rewards have less variance are replaced; 0 keeps every group."
    )
    online_difficulty_filtering: bool = Field(
        False, description="Tasks rest while their groups' mean reward says that they are too easy or too hard."
    )
    max_errored_groups: int = Field(
        8, ge=1, description="Groups' worth of rollouts that may fail in a row for one slot before the run stops."
    )
    min_group_size: int = Field(
        2, ge=2, description="Rollouts without an error that a group needs to be trained; with fewer it is replaced."
    )
    curriculum: str | None = Field(
        None, description="Another order of tasks: 'package.module:name', called with pools and seed."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if any(ratio <= 0 for ratio in self.env_ratios):
            raise ValueError("env_ratios should all be above 0; take the environment out instead")
        changed = list(filter(self.differs, DifficultyRule.model_fields))
        if changed and not self.online_difficulty_filtering:
            raise ValueError(f"{changed[0]} has no effect without online_difficulty_filtering = true")
        if self.curriculum is not None and self.online_difficulty_filtering:
            raise ValueError("a curriculum of one's own decides about difficulty itself: drop one of the two keys")
        if self.hard_threshold >= self.easy_threshold:
            raise ValueError(
                f"hard_threshold = {self.hard_threshold:g} should be below easy_threshold = {self.easy_threshold:g}"
            )
        if self.easy_fraction + self.hard_fraction > 1:
            raise ValueError("easy_fraction and hard_fraction together are more than the whole batch")
        return self

    def make_curriculum(self, pools: Sequence[Pool], seed: int) -> Curriculum:
        """The curriculum that is configured. Raises `ConfigError` for an import path that leads to none."""
        if self.curriculum is None:
            return MixedCurriculum(pools, seed=seed, rule=self if self.online_difficulty_filtering else None)
        made = resolve_function(self.curriculum, "buffer.curriculum")(pools, seed=seed)
        missing = [name for name in METHODS if not callable(getattr(made, name, None))]
        if missing:
            raise ConfigError(
                f"buffer.curriculum: '{self.curriculum}' made a {type(made).__name__} without {', '.join(missing)}; "
                "whet.rl.data.curriculum.Curriculum says what each does."
            )
        curriculum: Curriculum = made
        return curriculum
