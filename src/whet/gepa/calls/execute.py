"""`RolloutExecutor`: runs a call as a rollout of an environment with the candidate's texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from whet.clients.client import Client
from whet.envs.environment import Environment
from whet.evals.sessions.grouping import needs_groups
from whet.gepa.calls.calls import Attempt
from whet.gepa.calls.outage import endpoint_failure
from whet.gepa.components import with_components
from whet.gepa.types import Candidate, RolloutCall, SearchExample
from whet.rollouts.groups import run_group
from whet.rollouts.jobs import seed_of
from whet.rollouts.limits import Limit
from whet.rollouts.results import state_to_output
from whet.types import RolloutInput, SamplingArgs


class RolloutExecutor:
    """Implements `Execute`."""

    def __init__(
        self,
        environments: Mapping[str, Environment],
        client: Client[Any, Any, Any, Any],
        model: str,
        sampling: Mapping[str, SamplingArgs],
        *,
        seed: int | None,
        timeout: float | None = None,
        state_columns: Sequence[str] = (),
    ) -> None:
        """`environments` and `sampling` by label; without a `seed` none is sent."""
        self._environments, self._client, self._model = environments, client, model
        self._sampling, self._seed = sampling, seed
        self._timeout, self._state_columns = timeout, list(state_columns)
        self._together = {label: needs_groups(env) for label, env in environments.items()}

    async def __call__(self, candidate: Candidate, example: SearchExample, call: RolloutCall, limit: Limit) -> Attempt:
        env = self._environments[example.environment]
        sampling = self._sampling[example.environment]
        if self._seed is not None:
            sampling = {**sampling, "seed": seed_of("gepa", self._seed, call.key)}
        with with_components(env, example.environment, candidate):
            [state] = await run_group(
                env,
                [cast(RolloutInput, example.row)],
                self._client,
                self._model,
                sampling,
                limit=limit,
                trajectory_ids=[call.key],
                independent_scoring=not self._together[example.environment],
                timeout=self._timeout,
            )
            row = state_to_output(state, self._state_columns)
            error = state.get("error")
            failed = env.parse_failed(state) if error is None else None
        row["task_id"] = row["example_id"]
        if failed is not None:
            row["parse_failed"] = failed
        return Attempt(row, endpoint_failure(error))
