"""Worker processes for the environments of a run (`workers_per_env`): the pool of evaluations, for training groups.

    this process                                             a worker
    which group, its permits, its deadline      ── job ──▶   turns of the environment, scoring
    the policy: prompts, tokens, versions       ◀─ ask ──    one for each turn
    states with the tokens as they were sampled ◀─ states ─

In a synchronous run the embedded engine waits, after each answer, until workers have done what follows from it
(`WorkerPool.at_work`). Without that the clock would decide which rollouts are decoded together, and with it the last
bits of their logprobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from whet.calls import call_all
from whet.envs.environment import Environment
from whet.envs.loading import load_environment
from whet.rl.loop.group_runner import TrainingEnv
from whet.rl.training_config import TrainingEnvConfig
from whet.rollouts.jobs import AnyClient, Finished, RolloutJob, RolloutRecipe
from whet.rollouts.workers.pool import WorkerPool
from whet.rollouts.workers.started import LocalProcess, Starter
from whet.types import RolloutInput


@dataclass(slots=True)
class TrainingParts:
    """`Parts` of training groups. The client is that of the policy, and there in the run's process alone."""

    sections: Sequence[TrainingEnvConfig]
    policy: AnyClient | None = None
    _environments: list[Environment] = field(default_factory=list)

    def environment(self, source: int, concurrency: int) -> Environment:
        """The environment of a section, as the run's own process loads it."""
        section = self.sections[source]
        env = load_environment(section.id, **section.loader_args())
        self._environments.append(env)
        return env

    async def client(self, source: int) -> AnyClient:
        assert self.policy is not None, "workers ask for it"
        return self.policy

    async def release(self, source: int) -> None: ...

    async def close(self) -> None:
        await call_all(env.close for env in self._environments)


@dataclass(frozen=True, slots=True)
class TrainingTasks:
    """A `JobSource`: the tasks of one environment."""

    label: str
    env: Environment
    tasks: list[RolloutInput]
    recipe: RolloutRecipe
    max_concurrent: int
    local: bool = True  # the policy answers in the run's process


@dataclass(frozen=True, slots=True)
class Notes:
    """A `Sink` for the pool's notes; its jobs are awaited, and so have no rows."""

    say: Callable[[str], None]

    def rollouts(self, job: RolloutJob, finished: Sequence[Finished]) -> None:
        raise AssertionError("training awaits the states of its jobs")

    def note(self, text: str) -> None:
        self.say(text)


def environment_workers(
    sections: Sequence[TrainingEnvConfig],
    environments: Sequence[TrainingEnv],
    policy: AnyClient,
    recipe: RolloutRecipe,
    say: Callable[[str], None],
    *,
    workers: int,
    max_concurrent: int,
    in_order: bool,
    start: Starter = LocalProcess,
) -> WorkerPool:
    """The pool of a run, not yet started: so many workers for each of its environments.

    `in_order` is for an engine that waits for them; `say` takes lines for people; `start` is where they run.
    """
    sources = [TrainingTasks(env.name, env.env, env.rows, recipe, max_concurrent) for env in environments]
    return WorkerPool(
        sources,
        [workers] * len(sources),
        TrainingParts(sections, policy),
        partial(TrainingParts, sections),
        Notes(say),
        apart=True,
        in_order=in_order,
        logs=True,
        in_process="workers_per_env = 1",
        start=start,
    )
