"""One group of rollouts for training, from a task to a scored group.

Every rollout gets a seed of its own, made from the run's seed, the number of its group and its index in the group, so
what is sampled never depends on which rollout finished first. A group has a deadline: past it, it is cancelled and
counts as errored, so it is replaced.

Worker processes for the environments of a run (`workers_per_env`): the pool of evaluations, for training groups.

    this process                                             a worker
    which group, its permits, its deadline      ── job ──▶   turns of the environment, scoring
    the policy: prompts, tokens, versions       ◀─ ask ──    one for each turn
    states with the tokens as they were sampled ◀─ states ─

In a synchronous run the embedded engine waits, after each answer, until workers have done what follows from it
(`WorkerPool.at_work`). Without that the clock would decide which rollouts are decoded together, and with it the last
bits of their logprobs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from whet.calls import call_all
from whet.clients.client import Client
from whet.envs.env_group import EnvGroup, member_of
from whet.envs.environment import Environment
from whet.envs.loading import load_environment
from whet.errors import RolloutTimeoutError
from whet.rl.data.curriculum import DrawnTask
from whet.rl.data.metrics import Lengths
from whet.rl.loop.group import Group
from whet.rl.sections.training import TrainingEnvConfig
from whet.rl.supervision.watchdog import GROUP, WatchedWait
from whet.rl.supervision.watchdog_thread import Watchdog
from whet.rollouts.jobs import AnyClient, Finished, RolloutJob, RolloutRecipe
from whet.rollouts.limits import Limit
from whet.rollouts.states import failed_state
from whet.rollouts.workers.pool import WorkerPool
from whet.rollouts.workers.started import LocalProcess, Starter
from whet.system.cancellation import cancellable
from whet.types import RolloutInput, SamplingArgs, State

OnBegin = Callable[[], None]


@dataclass(frozen=True, slots=True)
class TrainingEnv:
    """An environment with the name its metrics carry and the rows it trains on."""

    name: str
    env: Environment
    rows: list[RolloutInput]
    max_concurrent: int | None = None  # of its own rollouts


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
    max_retries: int = 0  # of a rollout that failed for reasons outside model and task
    retry_delay: float = 1.0  # seconds before the first
    temperature: Callable[[], float] | None = None  # of rollouts that begin now; None: as sampling_args say
    workers: WorkerPool | None = None  # run the groups; None: this process does
    watchdog: Watchdog = field(default_factory=Watchdog)
    lengths: Lengths = field(default_factory=Lengths)
    _limit: asyncio.Semaphore = field(init=False)
    _own_limits: list[asyncio.Semaphore] = field(init=False)

    def __post_init__(self) -> None:
        self._limit = asyncio.Semaphore(self.max_concurrent)
        most = [env.max_concurrent or self.max_concurrent for env in self.environments]
        self._own_limits = [asyncio.Semaphore(min(number, self.max_concurrent)) for number in most]

    def lengths_so_far(self, task: DrawnTask) -> list[float]:
        """Sampled tokens of the rollouts of a running group, as far as they have begun."""
        return self.lengths.of(self._names(task))

    @property
    def recipe(self) -> RolloutRecipe:
        """How tasks are attempted. Workers are given it at their start, so it never changes."""
        return RolloutRecipe(
            self.model,
            self.sampling_args,
            seed=(self.seed,),
            max_retries=self.max_retries,
            retry_delay=self.retry_delay,
        )

    async def _attempt(self, job: RolloutJob, source: TrainingEnv, limit: Limit) -> list[State]:
        if self.workers is not None:
            return await self.workers.run(job, limit)
        return await job.attempt(self.recipe, source.env, self.client, source.rows[job.task], limit)

    def _names(self, task: DrawnTask) -> list[str]:
        return [f"{task.number}-{index}" for index in range(self.rollouts_per_example)]

    async def run(self, slot: int, task: DrawnTask, on_begin: OnBegin | None = None) -> Group:
        """The group of `task`, scored, for this `slot` of a batch; `on_begin` is called when its first rollout begins.

        Cancelling it cancels its rollouts.
        """
        source = self.environments[task.environment]
        row = source.rows[task.index]
        temperature = None if self.temperature is None else self.temperature()
        indices = tuple(range(self.rollouts_per_example))
        job = RolloutJob(task.environment, task.index, indices, task.number, temperature, whole=True)
        names = self._names(task)
        self.lengths.follow(names)
        left = False

        def leave() -> None:
            nonlocal left
            left = True

        try:
            async with watched_group(
                self.watchdog,
                self._own_limits[task.environment],
                self._limit,
                number=task.number,
                environment=source.name,
                example_id=row["example_id"],
                rollouts=self.rollouts_per_example,
                on_begin=on_begin,
                progress=lambda: self.lengths.finished(names),
            ) as limit:
                states = await cancellable(self._attempt(job, source, limit), on_left=leave)
        except RolloutTimeoutError as error:
            if left:
                error = RolloutTimeoutError(f"{error}; it did not end when it was cancelled, and was left")
            each_args = [self.recipe.sampling_of(task.number, index) for index in indices]
            states = [failed_state(row, self.client, self.model, args, error) for args in each_args]
        finally:
            self.lengths.forget(names)
        member = member_of(row) if isinstance(source.env, EnvGroup) else ""
        return Group(slot, task, source.name, states, source.env.rubric.sets_advantages_of(states), member)


@dataclass(slots=True)
class GroupLimit:
    """Slots for the rollouts of one group: out of its environment's, then out of all. The group's time begins with its
    first one."""

    own: asyncio.Semaphore
    permits: asyncio.Semaphore
    rollouts: int
    clock: Callable[[], float]
    wait: WatchedWait
    on_begin: Callable[[], None] | None = None
    begun: int = 0
    ended: int = 0

    async def __aenter__(self) -> None:
        await self.own.acquire()  # first: one that waits for it takes no slot of others
        try:
            await self.permits.acquire()
        except BaseException:
            self.own.release()
            raise
        self.begun += 1
        if self.begun == 1:
            self.wait.began = self.clock()
            if self.on_begin is not None:
                self.on_begin()

    async def __aexit__(self, *_: object) -> None:
        self.ended += 1
        self.permits.release()
        self.own.release()

    def describe(self) -> str:
        """What is not over yet."""
        if self.ended >= self.rollouts:  # more where a worker died with some of them
            return "its rollouts have ended, their scoring has not"
        return f"{self.rollouts - self.ended} of {self.rollouts} rollouts have not ended"


@asynccontextmanager
async def watched_group(
    watchdog: Watchdog,
    own: asyncio.Semaphore,
    permits: asyncio.Semaphore,
    *,
    number: int,
    environment: str,
    example_id: object,
    rollouts: int,
    on_begin: Callable[[], None] | None = None,
    progress: Callable[[], int] | None = None,
) -> AsyncIterator[GroupLimit]:
    """What happens within is one group. Raises `RolloutTimeoutError` where the watchdog has ended it."""
    timeout = asyncio.timeout(None)
    reason = ""

    def end(message: str) -> None:
        nonlocal reason
        reason = message
        with suppress(RuntimeError):  # it has just ended by itself
            timeout.reschedule(asyncio.get_running_loop().time())

    awaited = f"environment {environment}, task {example_id}"
    with watchdog.waiting(f"{GROUP}{environment}", f"group {number}", awaited, act=end) as wait:
        wait.began, wait.progress = math.inf, progress  # waiting for a slot is not a stall
        limit = GroupLimit(own, permits, rollouts, watchdog.clock, wait, on_begin)
        wait.detail = limit.describe
        try:
            async with timeout:
                yield limit
        except TimeoutError:
            if not timeout.expired():
                raise
            watchdog.waits.expired[wait.kind] += 1
            if watchdog.waits.hopeless(wait.kind):
                watchdog.stop(f"{reason}; no group of this environment has ever ended")
            raise RolloutTimeoutError(reason) from None


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
