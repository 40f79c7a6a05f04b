"""Jobs that a session gives to a runner, and the rows it gets back: data, which can be sent to another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from whet.clients.client import Client
from whet.envs.environment import Environment
from whet.evals.evaluate import rollout_seed
from whet.evals.parsing import parse_failed
from whet.rollouts.groups import OnRollout, run_group
from whet.rollouts.limits import Limit
from whet.rollouts.results import row_line, state_to_output
from whet.types import RolloutInput, RolloutOutput, SamplingArgs, State

AnyClient = Client[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True)
class RolloutRecipe:
    """How every rollout of an evaluation is attempted."""

    evaluation: int  # its number in the session
    model: str
    sampling_args: SamplingArgs
    seed: int | None  # None: no seed is sent
    together: bool  # the attempts at a task are scored as a group
    max_retries: int = 0
    timeout: float | None = None
    state_columns: tuple[str, ...] = ()

    def sampling_of(self, example_id: object, place: int) -> SamplingArgs:
        if self.seed is None:
            return self.sampling_args
        return {**self.sampling_args, "seed": rollout_seed(self.seed, example_id, place)}


@dataclass(frozen=True, slots=True)
class RolloutJob:
    """Attempts at one task that are run in one process: all of a group that is scored together, otherwise one."""

    evaluation: int
    task: int
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """A rollout that is scored or has failed: its row, and the row as it stands in the file."""

    place: int
    row: RolloutOutput
    line: bytes


class Attempted(Protocol):
    """What of an evaluation is needed to run its rollouts."""

    @property
    def env(self) -> Environment: ...

    @property
    def tasks(self) -> Sequence[Mapping[str, Any]]: ...

    @property
    def recipe(self) -> RolloutRecipe: ...


class Sink(Protocol):
    """Receives finished rollouts, on the event loop."""

    def rollouts(self, job: RolloutJob, finished: Sequence[Finished]) -> None:
        """Some of a job's rollouts; of a group that is scored together, all of them."""
        ...

    def note(self, text: str) -> None: ...


class Runner(Protocol):
    """Runs rollouts, as many at once as their evaluation allows."""

    async def begin(self, evaluation: int) -> None:
        """Prepare what an evaluation needs. Raises `WhetError` where its model cannot be had."""
        ...

    async def submit(self, job: RolloutJob) -> None:
        """Returns once the job has a slot. Raises the error that ended an earlier job."""
        ...

    async def drain(self) -> None:
        """Returns once every job is done; raises like `submit`."""
        ...

    async def end(self, evaluation: int) -> None:
        """Nothing more comes of an evaluation: what only it needed is closed."""
        ...

    async def close(self) -> None:
        """Cancel what is running and release everything."""
        ...


async def attempt(
    env: Environment,
    client: AnyClient,
    recipe: RolloutRecipe,
    row: Mapping[str, Any],
    places: Sequence[int],
    limit: Limit | None,
    on_rollout: OnRollout | None = None,
) -> list[Finished]:
    """Run some of the attempts at one task, and score them: together, or each for itself."""
    example_id = row["example_id"]
    states = await run_group(
        env,
        [cast(RolloutInput, row)] * len(places),
        client,
        recipe.model,
        [recipe.sampling_of(example_id, place) for place in places],
        limit=limit,
        on_rollout=on_rollout,
        # A model that is run here distinguishes rollouts by these, also those of other evaluations.
        trajectory_ids=[f"{recipe.evaluation}-{example_id}-{place}" for place in places],
        independent_scoring=not recipe.together,
        max_retries=recipe.max_retries,
        timeout=recipe.timeout,
    )
    return [finished(place, _row(env, state, recipe)) for place, state in zip(places, states, strict=True)]


def _row(env: Environment, state: State, recipe: RolloutRecipe) -> RolloutOutput:
    row = state_to_output(state, recipe.state_columns)
    failed = parse_failed(env, state) if state.get("error") is None else None
    if failed is not None:
        row["parse_failed"] = failed
    return row


def finished(place: int, row: RolloutOutput) -> Finished:
    """A row with its place among the attempts at its task."""
    placed = RolloutOutput({"example_id": row["example_id"], "rollout": place, **row})
    placed["rollout"] = place  # also where a metric has that name
    return Finished(place, placed, row_line(placed).encode())
