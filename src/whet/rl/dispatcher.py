"""Keeps groups in flight until a batch is complete: asks the curriculum what to run, reports to the collector.

This is the edge between pure decisions and asyncio. Every rollout gets a seed of its own, made from the run's seed, the
number of its group and its place in the group, so what is sampled never depends on which rollout finished first.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from whet.clients.client import Client
from whet.envs.environment import Environment
from whet.rl.collector import Collector
from whet.rl.curriculum import Curriculum, Task
from whet.rl.group import Batch, Group
from whet.rl.judge import Judge
from whet.rollouts.groups import run_group
from whet.types import RolloutInput, SamplingArgs

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class TrainingEnv:
    """An environment with the name its metrics carry and the rows it trains on."""

    name: str
    env: Environment
    rows: list[RolloutInput]


def rollout_seed(seed: int, group: int, index: int) -> int:
    """A seed in [0, 2**63) that depends on the run's seed and a rollout's place in the run, and on nothing else."""
    digest = hashlib.blake2b(f"{seed}/{group}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(slots=True)
class Dispatcher:
    """Runs the groups of one step at a time."""

    environments: list[TrainingEnv]
    curriculum: Curriculum
    client: Client[Any, Any, Any, Any]
    model: str
    sampling_args: SamplingArgs
    rollouts_per_example: int
    groups_per_batch: int
    min_variance: float
    max_concurrent: int
    seed: int
    _limit: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._limit = asyncio.Semaphore(self.max_concurrent)

    async def collect(self, on_progress: OnProgress | None = None) -> Batch:
        """Run groups until every slot of a batch is filled. Cancelling it cancels every rollout."""
        collector = Collector(self.groups_per_batch, Judge(self.min_variance))
        tasks = [self.curriculum.next_task() for _ in range(self.groups_per_batch)]
        attempted: list[Group] = []
        running = {asyncio.create_task(self._run(slot, task)): (slot, task) for slot, task in enumerate(tasks)}
        try:
            while running:
                finished, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                # Sets have no order: decide in slot order, so that replacements draw the same tasks every time.
                for done in sorted(finished, key=lambda item: running[item][0]):
                    slot, task = running.pop(done)
                    attempted.append(done.result())
                    if not collector.add(done.result()):
                        again = self.curriculum.next_of(task.environment)
                        running[asyncio.create_task(self._run(slot, again))] = (slot, again)
                if on_progress is not None:
                    on_progress(collector.filled, self.groups_per_batch)
        finally:
            for unfinished in running:
                unfinished.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        self._observe(attempted)
        return collector.batch()

    def _observe(self, groups: list[Group]) -> None:
        """Tell the curriculum what was earned, in the order of the draws: the clock must not decide what comes next."""
        for group in sorted(groups, key=lambda group: group.id):
            if not group.errors:
                self.curriculum.observe(group.task, float(group.rewards_G.mean()))

    async def _run(self, slot: int, task: Task) -> Group:
        source = self.environments[task.environment]
        places = range(self.rollouts_per_example)
        states = await run_group(
            source.env,
            [source.rows[task.index] for _ in places],
            self.client,
            self.model,
            [{**self.sampling_args, "seed": rollout_seed(self.seed, task.number, place)} for place in places],
            limit=self._limit,
            trajectory_ids=[f"{task.number}-{place}" for place in places],
        )
        return Group(slot, task, source.name, states, source.env.rubric.sets_advantages_of(states))
