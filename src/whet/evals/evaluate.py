"""A model on an environment's held-out tasks: every task several times, every rollout with a seed of its own.

The seed of a rollout depends on the evaluation's seed, its task and its place in the group alone, so that scores repeat
whatever finishes first, and two policies evaluated with the same seed differ by their weights alone. What the numbers
mean is in `analysis/summary.py`; evaluations that are saved are run by `sessions/`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from whet.clients.client import Client
from whet.envs.answers import check_answers
from whet.envs.env_group import held_out_rows, member_names, member_of
from whet.envs.environment import Environment
from whet.evals.analysis.summary import sampling_name
from whet.rollouts.driver import Driver
from whet.rollouts.jobs import RolloutRecipe
from whet.rollouts.limits import rollout_limit
from whet.rollouts.token_rows import rollout_row
from whet.rollouts.totals import EvalScore, Mean, Totals
from whet.types import SamplingArgs, State

EVAL_SEED = ("eval",)
"""The seed of a rollout is made from this, the evaluation's seed, the task's `example_id` and the attempt's index."""


async def evaluate_environment(
    env: Environment,
    client: Client[Any, Any, Any, Any],
    model: str,
    *,
    num_examples: int,
    rollouts_per_example: int,
    sampling_args: SamplingArgs,
    max_concurrent: int,
    seed: int,
    max_retries: int = 0,
    timeout: float | None = None,
    on_progress: Callable[[State], Any] | None = None,
    label: tuple[str, str] | None = None,
) -> EvalScore:
    """Mean reward and metrics on the first `num_examples` evaluation rows (-1 = all).

    Args:
        max_retries: further attempts of a rollout that failed for reasons outside model and task.
        timeout: seconds an attempt may take.
        on_progress: called with each finished rollout.
        label: names the environment and the way of sampling; each evaluation that runs at the same time has its own.

    Errored rollouts are counted and left out of the means; where all are, the reward is NaN.
    """
    rows = held_out_rows(env, num_examples)
    environment, sampling = label or (env.env_id, sampling_name(sampling_args))
    check_answers(env, rows, environment)
    recipe = RolloutRecipe(
        model,
        sampling_args,
        name=f"eval-{environment}-{sampling}",
        seed=(*EVAL_SEED, seed),
        max_retries=max_retries,
        timeout=timeout,
    )
    indices = range(rollouts_per_example)
    limit = rollout_limit(max_concurrent)
    rows_by_task: dict[int, list[dict[str, Any]]] = {}

    async def attempt(number: int, row: Mapping[str, Any]) -> None:
        states = await recipe.attempt(env, client, row, indices, limit, on_progress)
        several = len(states) > 1  # one rollout has nothing to be compared with
        rows_by_task[number] = [
            rollout_row(
                state,
                group=str(state["example_id"]),
                environment=environment,
                advantage=state.get("advantage") if several else None,
            )
            for state in states
        ]

    async with Driver() as driver:
        for number, row in enumerate(rows):
            await driver.begin(attempt(number, row), limit)
        await driver.drain()
    rows_in_order = [row for number in sorted(rows_by_task) for row in rows_by_task[number]]

    def scored(name: str, own: list[dict[str, Any]]) -> EvalScore:
        return score_rows(name, sampling, own, rollouts_per_example, env.pass_threshold)

    by_member: dict[str, list[dict[str, Any]]] = {name: [] for name in member_names(env)}
    if by_member:
        for number in sorted(rows_by_task):
            by_member[member_of(rows[number])] += rows_by_task[number]
    members = [replace(scored(f"{environment}/{name}", own), rows=[]) for name, own in by_member.items() if own]
    return replace(scored(environment, rows_in_order), members=members)


def score_rows(
    environment: str, sampling: str, rows: list[dict[str, Any]], rollouts_per_example: int, pass_threshold: float
) -> EvalScore:
    """The means over rows that did not fail; a metric is averaged over the rows that have it."""
    totals, by_task = Totals(rollouts_per_example, pass_threshold), defaultdict[str, Mean](Mean)
    totals.add(rows)
    for row in rows:
        if row["error"] is None:
            by_task[str(row["example_id"])].add(float(row["reward"]))
    reward = totals.reward.value
    return EvalScore(
        environment=environment,
        sampling=sampling,
        reward=math.nan if reward is None else reward,
        metrics={name: mean.value or 0.0 for name, mean in sorted(totals.metrics.items())},
        rollouts=totals.num_rollouts,
        errors=totals.num_errors,
        error_examples=totals.error_examples,
        rows=rows,
        pass_at_k=totals.passes.compute()[0],
        by_task={task: mean.value or 0.0 for task, mean in by_task.items()},
    )
