"""The loop that reinforcement learning and fine-tuning share: steps, evaluations, checkpoints.

[evaluate] ─▶ step ─▶ [checkpoint]      until the last step, a request to stop, or an error

Scores on held-out tasks before, during and after training, each pinned to one policy version.

The scoring itself is `whet.evals`; here is only which environments, which ways of sampling, and with which seeds. The
tasks and seeds are the same at every moment of a run, so that two moments differ by the weights alone.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from whet.clients.client import Client
from whet.envs.environment import Environment
from whet.evals.evaluate import evaluate_environment
from whet.rl.learner.protocol import Learner
from whet.rl.monitors.protocol import EvalReport, Monitor
from whet.rl.storage.records import Records
from whet.rl.supervision.ending import Ending, StopRequested, unless_stopped
from whet.rl.supervision.memory import RunMemory
from whet.rl.supervision.watchdog import EVALUATION
from whet.rl.supervision.watchdog_thread import Watchdog
from whet.rollouts.limits import gather
from whet.types import State

if TYPE_CHECKING:
    from whet.rl.config import RunConfig
    from whet.rl.sft.config import SftConfig


T = TypeVar("T")

Evaluate = Callable[[str, int], Awaitable[EvalReport]]
"""(moment, step) -> scores on held-out tasks under the weights of now."""


class RunBlocking(Protocol):
    """How blocking work of learner and records is done: `inline`, or in a thread while the event loop continues."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


async def inline(work: Callable[[], T]) -> T:
    """At once; the event loop waits. What a learner in this process needs to be repeatable."""
    return work()


@dataclass(slots=True, kw_only=True)
class TrainingLoop(ABC):
    """Drives one run from its first step to `last_step`. A subclass has a kind of training."""

    config: RunConfig | SftConfig
    last_step: int
    learner: Learner
    records: Records
    monitor: Monitor
    evaluate: Evaluate | None = None
    run_blocking: RunBlocking = inline
    watchdog: Watchdog = field(default_factory=Watchdog)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ending: Ending | None = None  # what may set `stop` before the last step
    memory: RunMemory = field(default_factory=RunMemory)

    async def run(self, first_step: int) -> int:
        """Train until the last step and return it. When `stop` is set: save, and raise `StopRequested`."""
        try:
            return await self._run(first_step - 1)
        finally:
            await self._recorded()  # whatever ends the run, what was learned is on record

    async def _run(self, step: int) -> int:
        try:
            self.memory.mark("load")
            await self._begin(step)
            while step < self.last_step:
                if self._evaluation_is_due(step):
                    await self._evaluate("during" if step else "before", step)
                await self._step(step + 1)
                step += 1
                if step % self.config.checkpointing.save_every_n_steps == 0:
                    await self._save(step)
        except StopRequested:
            await self._save(step)
            raise
        await self._save(step)
        if self.evaluate is not None and self.config.eval.after:
            await self._evaluate("after", step)
        return step

    async def _begin(self, step: int) -> None:
        """What comes before the first step of this process; `step` is the last one on record."""
        return None

    @abstractmethod
    async def _step(self, step: int) -> None:
        """One optimiser step. It happens whole, or (when `stop` is set before it begins) not at all."""

    async def _recorded(self) -> None:
        """Wait until the last step is on record."""
        return None

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """What a checkpoint holds besides the learner: where the data continues."""

    @property
    def _blocks(self) -> bool:
        """Whether learner and records keep the event loop busy; in a thread they do not."""
        return self.run_blocking is inline

    def _learner_hangs(self, message: str) -> None:
        """A learner in a process of its own is ended, so that the call that awaits it fails."""
        self.watchdog.stop(message)
        self.learner.close()

    def _evaluation_is_due(self, step: int) -> bool:
        """Checked before the step after `step`; so a run that was stopped in an evaluation repeats it on resume."""
        config = self.config.eval
        if self.evaluate is None:
            return False
        wanted = config.interval > 0 and step % config.interval == 0 if step else config.before
        return wanted and not self.records.evaluated(step)

    async def _evaluate(self, moment: str, step: int) -> None:
        assert self.evaluate is not None
        await self._recorded()
        environments = self.config.eval.env or getattr(self.config, "env", ())
        awaited = f"the evaluation of {', '.join(env.label for env in environments)}"
        with self.watchdog.waiting(EVALUATION, "the run", awaited, act=self.watchdog.stop):
            report = await unless_stopped(self.stop, self.evaluate(moment, step))
        self.memory.mark("evaluate")
        report = self.records.evaluation(report)
        self.monitor.evaluation(report)
        if self.ending is not None:
            self.ending.after_evaluation(report)

    async def _save(self, step: int) -> None:
        """A checkpoint of `step`; nothing when there is one already or nothing was learned."""
        await self._recorded()
        state = self._state() | ({} if self.ending is None else self.ending.state_dict())
        if step <= 0:
            return
        awaited = "the learner, or the disk (a checkpoint)"
        with self.watchdog.waiting("save", "the run", awaited, act=self._learner_hangs, blocks=self._blocks):
            saved = await self.run_blocking(lambda: self.records.save(step, self.learner, state))
        self.memory.mark("save")
        if saved:
            self.monitor.note(f"checkpoint of step {step} written")


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
