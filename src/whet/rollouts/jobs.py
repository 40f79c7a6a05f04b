"""Jobs: attempts at a task that are run together, how they are attempted, and the rows that they become.

All of it is data that can be sent to a worker process. Evaluations, evaluation during training, training groups and
searches attempt their tasks by a `RolloutRecipe`; `driver.py` and `workers/` run many jobs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from whet.clients.client import Client
from whet.rollouts.groups import OnRollout, RolloutEnv, run_group
from whet.rollouts.limits import Limit
from whet.rollouts.results import row_line, state_to_output
from whet.types import RolloutInput, RolloutOutput, SamplingArgs, State

AnyClient = Client[Any, Any, Any, Any]


class JobEnv(RolloutEnv, Protocol):
    """What running a job needs of an environment."""

    def parse_failed(self, rollout: Mapping[str, Any]) -> bool | None: ...


def seed_of(*parts: object) -> int:
    """A seed in [0, 2**63) that depends on these parts alone, such as an evaluation's seed, its task and an index."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True, slots=True)
class RolloutRecipe:
    """How tasks are attempted, as long as nothing but the task changes."""

    model: str
    sampling_args: SamplingArgs
    name: str = ""  # begins the trajectory ids, by which a model run here distinguishes rollouts
    seed: tuple[object, ...] | None = None  # what seeds are made from, before task and index; None: none is sent
    together: bool = True  # the attempts at a task are scored as a group
    max_retries: int = 0
    retry_delay: float = 1.0  # seconds before the first retry
    timeout: float | None = None  # seconds of an attempt
    state_columns: tuple[str, ...] = ()

    def sampling_of(self, task: object, index: int) -> SamplingArgs:
        if self.seed is None:
            return self.sampling_args
        return {**self.sampling_args, "seed": seed_of(*self.seed, task, index)}

    def at(self, temperature: float) -> RolloutRecipe:
        """The same at another temperature."""
        return replace(self, sampling_args={**self.sampling_args, "temperature": temperature})

    def trajectory_id(self, task: object, index: int) -> str:
        return f"{self.name}-{task}-{index}" if self.name else f"{task}-{index}"

    async def attempt(
        self,
        env: JobEnv,
        client: AnyClient,
        row: Mapping[str, Any],
        indices: Sequence[int],
        limit: Limit | None,
        on_rollout: OnRollout | None = None,
        *,
        task: object = None,
    ) -> list[State]:
        """Run the attempts with these indices at the task `row`, and score them: together, or each by itself.

        `task` is what seeds and trajectory ids name the task by; the row's `example_id` if absent.
        """
        task = row["example_id"] if task is None else task
        states = await run_group(
            env,
            [cast(RolloutInput, row)] * len(indices),
            client,
            self.model,
            [self.sampling_of(task, index) for index in indices],
            limit=limit,
            on_rollout=on_rollout,
            trajectory_ids=[self.trajectory_id(task, index) for index in indices],
            independent_scoring=not self.together,
            max_retries=self.max_retries,
            retry_delay=self.retry_delay,
            timeout=self.timeout,
        )
        for state in states:
            failed = env.parse_failed(state) if state.get("error") is None else None
            if failed is not None:
                state["parse_failed"] = failed
        return states

    def output(self, state: State) -> RolloutOutput:
        """The result row of a rollout."""
        row = state_to_output(state, self.state_columns)
        if "parse_failed" in state:
            row["parse_failed"] = state["parse_failed"]
        return row


@dataclass(frozen=True, slots=True)
class RolloutJob:
    """Attempts at one task that are run in one process: all of a group that is scored together, otherwise one."""

    source: int  # index of the `JobSource`
    task: int
    indices: tuple[int, ...]
    name: object = None  # what seeds and trajectory ids name the task by; its `example_id` if absent
    temperature: float | None = None  # in place of the recipe's
    whole: bool = False  # its result are states, for the caller that awaits it; else rows, for the `Sink`

    async def attempt(
        self,
        recipe: RolloutRecipe,
        env: JobEnv,
        client: AnyClient,
        row: Mapping[str, Any],
        limit: Limit | None,
        on_rollout: OnRollout | None = None,
    ) -> list[State]:
        """Run its rollouts by the recipe of its source, and score them."""
        recipe = recipe if self.temperature is None else recipe.at(self.temperature)
        return await recipe.attempt(env, client, row, self.indices, limit, on_rollout, task=self.name)


@dataclass(frozen=True, slots=True)
class Finished:
    """A rollout that is scored or has failed: its row, and the row as it is written to the file."""

    index: int
    row: RolloutOutput
    line: bytes

    @classmethod
    def of(cls, index: int, row: RolloutOutput) -> Finished:
        """With the number of the attempt in the row."""
        numbered = RolloutOutput({"example_id": row["example_id"], "rollout": index, **row})
        numbered["rollout"] = index
        return cls(index, numbered, row_line(numbered).encode())


class JobSource(Protocol):
    """What jobs have in common: an environment, its tasks, and how they are attempted."""

    @property
    def label(self) -> str:
        """The environment, in messages."""

    @property
    def env(self) -> JobEnv: ...

    @property
    def tasks(self) -> Sequence[Mapping[str, Any]]: ...

    @property
    def recipe(self) -> RolloutRecipe: ...

    @property
    def max_concurrent(self) -> int:
        """Rollouts in flight at once."""

    @property
    def local(self) -> bool:
        """Whether its model runs in this process."""


class Parts(Protocol):
    """The environments and clients of job sources, by index, in one process. A function without state makes them."""

    def environment(self, source: int, concurrency: int) -> JobEnv:
        """The environment, of which this process runs so many rollouts at once. Raises `WhetError`."""

    async def client(self, source: int) -> AnyClient:
        """Raises `WhetError` where its model cannot be had."""

    async def release(self, source: int) -> None:
        """Nothing more comes of a source: what only it needed is closed."""

    async def close(self) -> None: ...


class Sink(Protocol):
    """Receives finished rollouts, on the event loop."""

    def rollouts(self, job: RolloutJob, finished: Sequence[Finished]) -> None: ...

    def note(self, text: str) -> None: ...


async def run_job(
    job: RolloutJob,
    env: JobEnv,
    client: AnyClient,
    recipe: RolloutRecipe,
    row: Mapping[str, Any],
    limit: Limit | None,
    on_rollout: OnRollout | None = None,
) -> list[Finished]:
    """The rows of a job."""
    states = await job.attempt(recipe, env, client, row, limit, on_rollout)
    return [Finished.of(index, recipe.output(state)) for index, state in zip(job.indices, states, strict=True)]
