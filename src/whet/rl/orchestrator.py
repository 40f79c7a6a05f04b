"""The training loop: generate, learn, publish, evaluate, save. Read this first.

One step of the synchronous loop, in which the sampler always holds the learner's weights:

    curriculum ─tasks─▶ dispatcher ─groups─▶ collector ─exactly one batch─▶ assemble (rewards, advantages, packing)
        ─▶ learner.forward_backward ─▶ learner.optim_step ─▶ learner.publish ─▶ engine.load_weights

Nothing here computes on tensors or formats output: each line calls the room that does. The order of the writes at the
end of a step is what makes a run safe to kill: rollouts, then metrics, then the ledger, then (every so often) a
checkpoint. Resuming from the checkpoint of step N cuts off whatever was written for later steps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from whet.inference.protocol import Engine
from whet.rl.assembly import assemble
from whet.rl.config import RunConfig
from whet.rl.dispatcher import Dispatcher
from whet.rl.group import Batch
from whet.rl.learner.protocol import Learner, OptimParams
from whet.rl.metrics import Timings, step_metrics
from whet.rl.monitors.protocol import EvalReport, Monitor, StepReport
from whet.rl.records import Records
from whet.rl.shaping import RewardShaper

T = TypeVar("T")

Evaluate = Callable[[str, int, int], Awaitable[EvalReport]]
"""(moment, step, policy version) -> scores on held-out tasks."""


class StopRequested(Exception):
    """Somebody asked the run to stop; the step under way was abandoned before its weights changed."""


@dataclass(slots=True)
class Orchestrator:
    """Drives one run from `first_step` to `config.max_steps`."""

    config: RunConfig
    dispatcher: Dispatcher
    engine: Engine
    learner: Learner
    evaluate: Evaluate
    records: Records
    monitor: Monitor
    shaper: RewardShaper
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, first_step: int) -> int:
        """Train until the last step and return it. When `stop` is set: save, and raise `StopRequested`."""
        step = first_step - 1
        try:
            while step < self.config.max_steps:
                if self._evaluation_is_due(step):
                    await self._evaluate("during" if step else "before", step)
                await self._step(step + 1)
                step += 1
                if step % self.config.checkpointing.save_every_n_steps == 0:
                    self._save(step)
        except StopRequested:
            self._save(step)
            raise
        self._save(step)
        if self.config.eval.after:
            await self._evaluate("after", step)
        return step

    async def _step(self, step: int) -> None:
        """One optimiser step. It happens whole, or (when `stop` is set while generating) not at all."""
        started = time.perf_counter()
        collected = await self._generate()
        generated = time.perf_counter()

        groups = collected.groups
        assembled = assemble(groups, self.config.algorithm, self.shaper, temperature=self.config.sampling.temperature)
        self.monitor.phase("train", 0, 1)
        loss = self.learner.forward_backward(assembled.batch, self.config.algorithm)
        optim = self.learner.optim_step(
            OptimParams(
                learning_rate=self.config.learning_rate,
                denominator=loss.tokens,
                max_grad_norm=self.config.optimizer.max_grad_norm or None,
            )
        )
        learned = time.perf_counter()
        await self.engine.load_weights(self.learner.publish())
        published = time.perf_counter()

        timings = Timings(
            generate=generated - started,
            train=learned - generated,
            weight_sync=published - learned,
            score=sum(state["timing"].scoring.duration for group in groups for state in group.states),
        )
        metrics = step_metrics(collected, assembled, loss, optim, timings)
        sample = self.records.step(step, groups, assembled.advantages, metrics)
        self.monitor.step(StepReport(step, metrics, sample))

    async def _generate(self) -> Batch:
        """A full batch of groups. An abandoned step gives its tasks back to the curriculum."""
        before = self.dispatcher.curriculum.state_dict()
        progress = lambda done, total: self.monitor.phase("generate", done, total)  # noqa: E731
        try:
            return await self._unless_stopped(self.dispatcher.collect(progress))
        except StopRequested:
            self.dispatcher.curriculum.load_state_dict(before)
            raise

    def _evaluation_is_due(self, step: int) -> bool:
        """Asked before the step after `step`; so a run that was stopped while it evaluated does it when it resumes."""
        interval = self.config.eval.interval
        wanted = interval > 0 and step % interval == 0 if step else self.config.eval.before
        return wanted and not self.records.evaluated(step)

    async def _evaluate(self, moment: str, step: int) -> None:
        report = await self._unless_stopped(self.evaluate(moment, step, self.engine.version))
        self.records.evaluation(report)
        self.monitor.evaluation(report)

    def _save(self, step: int) -> None:
        """A checkpoint of `step`; nothing when there is one already or nothing was learned."""
        state = {**self.dispatcher.curriculum.state_dict(), **self.shaper.state_dict()}
        if step > 0 and self.records.save(step, self.learner, state):
            self.monitor.note(f"checkpoint of step {step} written")

    async def _unless_stopped(self, work: Awaitable[T]) -> T:
        """The result of `work`, unless `stop` is set first: then `work` is cancelled and `StopRequested` raised."""
        job = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait({job, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not job.done():
                raise StopRequested
            return job.result()
        finally:
            stopped.cancel()
            if not job.done():
                job.cancel()
                await asyncio.gather(job, return_exceptions=True)
