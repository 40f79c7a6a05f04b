"""One group: the rollouts of one task, attempted concurrently and scored together.

A permit of `limit` is held by a rollout, not by its group: a rollout that has finished frees it while its siblings
continue or are scored. On one event loop with a client that answers in this process, the inputs alone determine the
order of everything: no threads, no clocks, no random identifiers where the caller gives them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, cast

from whet.calls import describe, resolve
from whet.clients.client import Client
from whet.clients.usage import judging
from whet.errors import (
    EnvError,
    Error,
    InfraError,
    InvalidModelResponseError,
    RewardError,
    RolloutTimeoutError,
    WhetError,
)
from whet.rollouts.limits import Limit, gather
from whet.rollouts.pace import current_pace
from whet.rollouts.states import cut_off_state, failed_state, watched_states
from whet.rubrics.rubric import Rubric, mark_unscored
from whet.system.cancellation import cancellable
from whet.types import RolloutInput, RolloutTiming, SamplingArgs, State

LONGEST_PAUSE_S = 60.0  # before a retry
RETRYABLE = (InfraError, InvalidModelResponseError, RewardError)
_EXPECTED: dict[str, type | tuple[type, ...]] = {
    "input": Mapping,
    "trajectory": list,
    "timing": RolloutTiming,
    "error": (BaseException, type(None)),
    "tool_defs": Sequence,
    "completion": (list, str, type(None)),
}
"""What scoring and result rows read of a state, and what it has to be there."""
OnRollout = Callable[[State], Any]


class RolloutEnv(Protocol):
    """What running a group needs of an environment."""

    rubric: Rubric
    score_rollouts: bool

    async def rollout(
        self, input: RolloutInput, client: Client[Any, Any, Any, Any], model: str, sampling_args: SamplingArgs | None
    ) -> State: ...


async def run_group(
    env: RolloutEnv,
    inputs: Sequence[RolloutInput],
    client: Client[Any, Any, Any, Any],
    model: str,
    sampling_args: Sequence[SamplingArgs] | SamplingArgs,
    *,
    limit: Limit | None = None,
    score: bool = True,
    on_rollout: OnRollout | None = None,
    trajectory_ids: Sequence[str] | None = None,
    independent_scoring: bool = False,
    max_retries: int = 0,
    retry_delay: float = 1.0,
    timeout: float | None = None,
    score_limit: Limit | None = None,
) -> list[State]:
    """Attempt every input once and score the group; the states, in the order of the inputs.

    Args:
        inputs: dataset rows that are ready to be attempted, usually the same one several times.
        sampling_args: for all rollouts, or one for each (each its own `seed`, say).
        limit: permits shared with other groups.
        score: False leaves reward, metrics and advantage None.
        on_rollout: called (or awaited) with each state once it has finished, before it is scored.
        trajectory_ids: one for each rollout; otherwise random ones.
        independent_scoring: score each rollout separately, without an advantage.
        max_retries: how often a rollout is attempted again that failed for reasons outside model and task.
        retry_delay: seconds before the first retry; doubles each time, with jitter.
        timeout: seconds an attempt may take, without its scoring; one that takes longer fails and is not tried again.
        score_limit: entered while the group is scored.

    An environment with a method `prepare_group(inputs)` may vary the rows of a group together before their attempts.
    A rollout that fails has `state["error"]` set, also where the environment's `rollout` itself raises or returns no
    state. A `WhetError` is a mistake of the user's and ends the group.
    """
    each_args = [sampling_args] * len(inputs) if isinstance(sampling_args, dict) else list(sampling_args)
    if len(each_args) != len(inputs):
        raise ValueError(f"{len(inputs)} rollouts with {len(each_args)} sampling_args; give one, or one for each")
    if trajectory_ids is not None:
        inputs = [
            cast(RolloutInput, {**row, "trajectory_id": trajectory_id})
            for row, trajectory_id in zip(inputs, trajectory_ids, strict=True)
        ]
    prepare = getattr(env, "prepare_group", None)
    if prepare is not None and not independent_scoring:
        inputs = await prepare(inputs)
    pace = current_pace()
    attempts = _Attempts(env, client, model, limit, on_rollout, max_retries, retry_delay, timeout)
    attempt = 0
    while True:
        if pace is not None and pace.spent():
            await pace.turn()
        states = await gather([attempts.rollout(row, args) for row, args in zip(inputs, each_args, strict=True)])
        if pace is not None and pace.spent():
            await pace.turn()
        if score:
            async with score_limit or nullcontext():
                await score_states(env, states, independent_scoring)
        else:
            for state in states:
                await env.rubric.cleanup(state)
        if attempt >= max_retries or not any(isinstance(state["error"], RewardError) for state in states):
            return states
        # Scores may compare the rollouts of a group, so one that could not be scored costs the whole group.
        await _back_off(retry_delay, attempt)
        attempt += 1


@dataclass(frozen=True, slots=True)
class _Attempts:
    """Attempts of rollouts, until one is over that need not be retried."""

    env: RolloutEnv
    client: Client[Any, Any, Any, Any]
    model: str
    limit: Limit | None
    on_rollout: OnRollout | None
    max_retries: int
    retry_delay: float
    timeout: float | None

    async def rollout(self, row: RolloutInput, args: SamplingArgs) -> State:
        attempt = 0
        while True:
            if self.limit is None:
                state = await self._attempt(row, args)
            else:
                async with self.limit:
                    state = await self._attempt(row, args)
            if attempt >= self.max_retries or not isinstance(state["error"], RETRYABLE):
                break
            await _back_off(self.retry_delay, attempt)
            attempt += 1
        if self.on_rollout is not None:
            await resolve(self.on_rollout(state))
        return state

    async def _attempt(self, row: RolloutInput, args: SamplingArgs) -> State:
        name = type(self.env).__name__
        try:
            if self.timeout is None:
                state = await self.env.rollout(row, self.client, self.model, args)
            else:
                state = await self._in_time(row, args, self.timeout)
            if (fault := _fault_of(state)) is not None:
                raise EnvError(f"{name}.rollout {fault}; it should return the state of init_state, continued")
            return state
        except WhetError:
            raise
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # This rollout was not cancelled: the environment awaited something of its own that was cancelled.
            error: Exception = EnvError(f"{name}.rollout was left by a CancelledError of its own")
            error.__cause__ = cancelled
        except Error as raised:
            error = raised
        except Exception as raised:
            error = EnvError(f"{name}.rollout raised {describe(raised, type(self.env))}")
            error.__cause__ = raised
        return failed_state(row, self.client, self.model, args, error)

    async def _in_time(self, row: RolloutInput, args: SamplingArgs, timeout: float) -> State:
        """The rollout; one that took too long as an error, with what was said until then."""
        deadline = asyncio.timeout(timeout)
        with watched_states() as begun:
            try:
                async with deadline:
                    return await cancellable(self.env.rollout(row, self.client, self.model, args))
            except TimeoutError:
                if not deadline.expired():
                    raise
        error = RolloutTimeoutError(f"the rollout took longer than {timeout:g} s")
        if begun and begun[0].get("completion") is not None:
            return cut_off_state(begun[0], row, error)
        raise error


def _fault_of(value: Any) -> str | None:
    """Why a rollout's result cannot be scored and written down; None where it can."""
    if not isinstance(value, State):
        return f"returned {type(value).__name__}"
    missing = sorted(_EXPECTED.keys() - {"completion"} - value.keys())
    if missing:
        return f"returned a state without {', '.join(missing)}"
    wrong = [name for name, kind in _EXPECTED.items() if not isinstance(value.get(name), kind)]
    return f"returned a state whose {wrong[0]} is {type(value.get(wrong[0])).__name__}" if wrong else None


async def score_states(env: RolloutEnv, states: list[State], independent: bool) -> None:
    """Score rollouts of a task, each by itself where `independent`; an error of the rubric is that of the rollouts."""
    rubric = env.rubric
    start = time.time()
    for state in states:
        scoring = state["timing"].scoring
        scoring.start = start - scoring.duration  # `RolloutTiming.grading`
    try:
        if independent:
            score_one = rubric.score_rollout if env.score_rollouts else rubric.dummy_score_rollout
            await gather([_judged(state, score_one) for state in states])
        elif env.score_rollouts:
            with judging(states):
                await rubric.score_group(states)
        else:
            await rubric.dummy_score_group(states)
    except WhetError:
        raise
    except Exception as error:  # not a reward function, whose errors are its rollout's, but a rubric's own code
        mark_unscored(states, f"the scoring of {type(rubric).__name__}", error)
    finally:
        end = time.time()
        for state in states:
            state["timing"].scoring.end = end
            await rubric.cleanup(state)


async def _judged(state: State, score_one: Callable[[State], Awaitable[None]]) -> None:
    with judging([state]):
        await score_one(state)


async def _back_off(delay: float, attempt: int) -> None:
    await asyncio.sleep(min(LONGEST_PAUSE_S, delay * 2**attempt) * random.uniform(0.5, 1.0))
