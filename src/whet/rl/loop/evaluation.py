"""Scores on held-out tasks before, during and after training, each pinned to one policy version.

The scoring itself is `whet.evals`; here is only which environments, which ways of sampling, and with which seeds. The
tasks and seeds are the same at every moment of a run, so that two moments differ by the weights alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from whet.clients.client import Client
from whet.envs.environment import Environment
from whet.evals.evaluate import evaluate_environment
from whet.rl.monitors.protocol import EvalReport, Monitor
from whet.rollouts.limits import gather
from whet.types import State

if TYPE_CHECKING:
    from whet.rl.config import RunConfig
    from whet.rl.sft.config import SftConfig


@dataclass(frozen=True, slots=True)
class HeldOutEvaluation:
    """What `[eval]` asks for."""

    config: RunConfig | SftConfig
    environments: list[tuple[str, Environment]]
    client: Client[Any, Any, Any, Any]
    monitor: Monitor

    async def __call__(self, moment: str, step: int, version: int) -> EvalReport:
        """Every environment in every way of sampling, all at once so that the engine's batches are full."""
        ways, settings = self._ways(), self.config.eval
        total = len(self.environments) * settings.num_examples * sum(map(self._repeats, ways))
        done = 0

        def advance(_: State) -> None:
            nonlocal done
            done = min(done + 1, total)  # a group that could not be scored is attempted again
            self.monitor.phase("evaluate", done, total)

        at_once = max(1, self.config.max_concurrent // max(1, len(self.environments) * len(ways)))
        scores = await gather(
            [
                evaluate_environment(
                    env,
                    self.client,
                    self.config.model,
                    num_examples=settings.num_examples,
                    rollouts_per_example=self._repeats((way, sampling)),
                    sampling_args=sampling,
                    max_concurrent=at_once,
                    seed=self.config.seed,
                    max_retries=settings.max_retries,
                    timeout=settings.timeout,
                    on_progress=advance,
                    label=(name, way),
                )
                for name, env in self.environments
                for way, sampling in ways
            ]
        )
        return EvalReport(cast(Literal["before", "during", "after"], moment), step, version, scores)

    def _repeats(self, way: tuple[str, dict[str, Any]]) -> int:
        """Rollouts of each task: greedily, one says it all."""
        return self.config.eval.rollouts_per_example if way[1]["temperature"] else 1

    def _ways(self) -> list[tuple[str, dict[str, Any]]]:
        """`temperature 1` and, where configured, `greedy`."""
        sampled = self.config.eval_sampling().args()
        ways = [(f"temperature {sampled['temperature']:g}", sampled)] if sampled["temperature"] else []
        if self.config.eval.greedy or not ways:
            cuts = {"top_p", "top_k", "min_p"}  # of what greedy never takes
            greedy = {name: value for name, value in sampled.items() if name not in cuts}
            ways.append(("greedy", {**greedy, "temperature": 0.0}))
        return ways
