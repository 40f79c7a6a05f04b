"""One group of rollouts for training, from a task to a scored group.

Every rollout gets a seed of its own, made from the run's seed, the number of its group and its place in the group, so
what is sampled never depends on which rollout finished first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from whet.clients.client import Client
from whet.envs.env_group import EnvGroup, member_of
from whet.envs.environment import Environment
from whet.errors import RolloutTimeoutError
from whet.rl.data.curriculum import Task
from whet.rl.data.lengths import Lengths
from whet.rl.loop.group import Group
from whet.rl.supervision.watchdog_groups import watched_group
from whet.rl.supervision.watchdog_thread import Watchdog
from whet.rollouts.jobs import Recipe
from whet.rollouts.states import failed_state
from whet.system.cancellation import cancellable
from whet.types import RolloutInput, SamplingArgs

OnBegin = Callable[[], None]


@dataclass(frozen=True, slots=True)
class TrainingEnv:
    """An environment with the name its metrics carry and the rows it trains on."""

    name: str
    env: Environment
    rows: list[RolloutInput]


@dataclass(slots=True)
class GroupRunner:
    """Attempts tasks. `max_concurrent` rollouts are in flight at once, whatever their groups."""

    environments: list[TrainingEnv]
    client: Client[Any, Any, Any, Any]
    model: str
    sampling_args: SamplingArgs
    rollouts_per_example: int
    max_concurrent: int
    seed: int
    temperature: Callable[[], float] | None = None  # of rollouts that begin now; None: as sampling_args say
    watchdog: Watchdog = field(default_factory=Watchdog)
    lengths: Lengths = field(default_factory=Lengths)
    _limit: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._limit = asyncio.Semaphore(self.max_concurrent)

    def lengths_so_far(self, task: Task) -> list[float]:
        """Sampled tokens of the rollouts of a group under way, as far as they have begun."""
        return self.lengths.of(self._names(task))

    def _names(self, task: Task) -> list[str]:
        return [f"{task.number}-{place}" for place in range(self.rollouts_per_example)]

    async def run(self, slot: int, task: Task, on_begin: OnBegin | None = None) -> Group:
        """The group of `task`, scored, for the place `slot`; `on_begin` is told when its first rollout begins.

        Cancelling it cancels its rollouts.
        """
        source = self.environments[task.environment]
        row = source.rows[task.index]
        args = self.sampling_args
        if self.temperature is not None:
            args = {**args, "temperature": self.temperature()}
        recipe = Recipe(self.model, args, seed=(self.seed,))
        indices = range(self.rollouts_per_example)
        names = self._names(task)
        self.lengths.follow(names)
        left = False

        def leave() -> None:
            nonlocal left
            left = True

        try:
            async with watched_group(
                self.watchdog,
                self._limit,
                number=task.number,
                environment=source.name,
                example_id=row["example_id"],
                rollouts=self.rollouts_per_example,
                on_begin=on_begin,
            ) as limit:
                group = recipe.attempt(source.env, self.client, row, indices, limit, task=task.number)
                states = await cancellable(group, on_left=leave)
        except RolloutTimeoutError as error:
            if left:
                error = RolloutTimeoutError(f"{error}; it did not end when it was cancelled, and was left")
            each_args = [recipe.sampling_of(task.number, index) for index in indices]
            states = [failed_state(row, self.client, self.model, args, error) for args in each_args]
        finally:
            self.lengths.forget(names)
        member = member_of(row) if isinstance(source.env, EnvGroup) else ""
        return Group(slot, task, source.name, states, source.env.rubric.sets_advantages_of(states), member)
