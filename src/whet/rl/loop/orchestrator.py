"""The training loop: generate, learn, publish, evaluate, save. Read this first.

`training_loop.py` repeats steps, with evaluations and checkpoints in between. One step, in which everything but the
source is the same whether rollouts run concurrently with the learner or in turn with it:

    source ─▶ assemble (rewards, advantages, packing) ─▶ learner.forward_backward    until exactly one batch is learned
        ─▶ learner.optim_step ─▶ learner.publish ─▶ engine.load_weights

    synchronous    a batch is sampled by the weights that learn from it, then nothing is in flight
    asynchronous   rollouts continue while the learner, a process of its own, has the finished ones
    colocated      synchronous, with one device for both: engine.sleep, learner.restore ... learner.offload, engine.wake

Nothing here computes on tensors or formats output: each line calls the room that does. The order of the writes at the
end of a step is what makes a run safe to kill: rollouts, then metrics, then the ledger, then (every so often) a
checkpoint. Resuming from the checkpoint of step N cuts off whatever was written for later steps.
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any, TypeVar

import numpy as np

from whet.errors import WhetError
from whet.inference.protocol import Engine, WeightUpdate
from whet.rl.config import RunConfig
from whet.rl.data.adaptive_weights import AdaptiveWeights
from whet.rl.data.assembly import (
    Assembled,
    RewardShaper,
    TurnDetails,
    assemble,
    assembly_metrics,
    require_tokens,
    turn_details,
)
from whet.rl.data.batch import TokenSequence
from whet.rl.data.metrics import (
    EVIDENCE,
    FreshTokens,
    Timings,
    fresh_of_batch,
    length_metrics,
    mismatch_metrics,
    probe,
    step_metrics,
)
from whet.rl.data.passes import loss_of_passes, passes_over
from whet.rl.data.preferences import with_preferences
from whet.rl.data.teacher import HintedPrompts, teacher_view
from whet.rl.data.values import value_metrics, with_values
from whet.rl.learner.protocol import (
    LossOutput,
    OptimOutput,
    OptimParams,
    TokenValues,
    nothing_learned,
)
from whet.rl.loop.endpoint_teacher import EndpointTeacher
from whet.rl.loop.group import BatchPart, BatchSource, Group, Tally
from whet.rl.loop.training_loop import TrainingLoop
from whet.rl.monitors.protocol import StepReport
from whet.rl.sections.algorithm import CURRENT
from whet.rl.supervision.ending import StopRequested as StopRequested
from whet.rl.supervision.ending import unless_stopped

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Orchestrator(TrainingLoop):
    """Drives one run of reinforcement learning."""

    config: RunConfig
    source: BatchSource
    engine: Engine
    shaper: RewardShaper
    adaptive: AdaptiveWeights
    prompts: HintedPrompts | None = None  # of the teacher, where environments have hints
    teacher: EndpointTeacher | None = None  # None where the learner has it
    _recording: asyncio.Future[None] | None = None
    _turns: dict[str, float] = field(default_factory=dict)  # metrics of the step's turns on the device

    async def _step(self, step: int) -> None:
        """One optimiser step. It happens whole, or (when `stop` is set before its batch is there) not at all."""
        self.source.idle_s()
        started = time.perf_counter()
        learned = await self._learn_batch(step)
        loss = learned.loss
        assembly = await self._mismatch(learned)
        optim, update = await self._in_learner(lambda: self._optimise(learned.left_divisor))
        optimised = time.perf_counter()
        await self._hand_over(update)
        self.memory.mark("publish")
        published = time.perf_counter()
        self.source.advance(update.version)

        timings = Timings(
            step=published - started,
            wait_batch=learned.wait_s,
            wait_policy=self.source.idle_s(),
            train=optimised - started - learned.wait_s,
            weight_sync=published - optimised,
            score=sum(state["timing"].scoring.duration for group in learned.groups for state in group.states),
        )
        assembly |= assembly_metrics(learned.parts, self.config.algorithm, temperature=self.config.sampling.temperature)
        assembly |= value_metrics(learned.parts)
        if self.config.asynchronous:
            assembly |= length_metrics(learned.groups, learned.tally.lost_lengths)
        metrics = step_metrics(
            learned.groups, learned.tally, learned.sequences, assembly, loss, learned.divisor, optim, timings
        )
        metrics |= self.adaptive.after_step(metrics)
        metrics |= self.engine.metrics() | self.learner.metrics() | self._turns | self.memory.metrics()
        if self.ending is not None:
            self.ending.after_step()
        record = self._record(step, learned, metrics)
        if self._blocks:
            await record
        else:
            await self._recorded()
            self._recording = asyncio.ensure_future(record)

    async def _record(self, step: int, learned: StepAccumulator, metrics: dict[str, float]) -> None:
        with self.watchdog.waiting(
            "records", "the run", "the disk (records)", act=self.watchdog.stop, blocks=self._blocks
        ):
            sample = await self.run_blocking(
                lambda: self.records.step(
                    step, learned.groups, learned.tally, learned.advantages, metrics, self._token_details(learned)
                )
            )
        self.monitor.step(StepReport(step, metrics, sample, learned.tally.failures))

    async def _recorded(self) -> None:
        """Wait until the last step is on record, which is written while the learner is at the next one."""
        if self._recording is not None:
            recording, self._recording = self._recording, None
            await recording

    async def _learn_batch(self, step: int) -> StepAccumulator:
        """The gradients of a whole batch, of each part as soon as its rollouts are there."""
        learned = StepAccumulator()
        while not learned.whole:
            requested = time.perf_counter()
            with self.watchdog.waiting("batch", "the learner", "a batch of rollouts"):
                part = await self._part(step)
            learned.wait_s += time.perf_counter() - requested
            if part.tally is not None:
                self.monitor.phase("train", 0, 1)
            algorithm, temperature = self.adaptive.algorithm, self.config.sampling.temperature
            weights = {env.label: env.loss_weight for env in self.config.env if env.loss_weight != 1}
            assembled = assemble(
                part.groups,
                algorithm,
                self.shaper,
                temperature=temperature,
                loss_weights=weights,
                distilled=self.config.distilled,
            )
            assembled = await self._with_teacher(part.groups, assembled)
            if part.tally is not None:
                require_tokens([*learned.parts, assembled], algorithm)
            if algorithm.learns_in_passes:
                await self._learn_in_passes(step, learned, part, assembled)
            elif assembled.batch.trained_tokens:
                loss = await self._in_learner(partial(self.learner.forward_backward, assembled.batch, algorithm))
                learned.add(part, assembled, loss)
            else:  # a part whose rollouts have no tokens, or are masked
                learned.add(part, assembled, nothing_learned(len(assembled.batch.ids)))
        return learned

    async def _with_teacher(self, groups: Sequence[Group], assembled: Assembled) -> Assembled:
        """What a teacher makes of the tokens that are distilled, where it is shown something else than the student."""
        elsewhere = self.prompts is not None or self.teacher is not None
        view = teacher_view(assembled, groups, self.prompts) if elsewhere else None
        if view is None:
            return assembled
        if self.teacher is not None:
            with self.watchdog.waiting("teacher", "the learner", "the teacher's endpoint", act=self.watchdog.stop):
                logprobs_T = await unless_stopped(self.stop, self.teacher.logprobs(view.batch))
            return replace(assembled, batch=view.to_student(logprobs_T, assembled.batch))
        itself = self.config.algorithm.reference == CURRENT
        logprobs = self.learner.token_logprobs if itself else self.learner.reference_logprobs
        logprobs_T = await self._in_learner(partial(logprobs, view.batch))
        return replace(assembled, batch=view.to_student(logprobs_T, assembled.batch))

    async def _learn_in_passes(self, step: int, learned: StepAccumulator, part: BatchPart, whole: Assembled) -> None:
        """Optimiser steps over parts of a batch, all but the last one."""
        algorithm = self.adaptive.algorithm
        if algorithm.has_critic:
            old_T, values_T = await self._in_learner(partial(self.learner.token_values, whole.batch))
            whole = with_values(whole, part.groups, values_T, algorithm)
        else:
            old_T = await self._in_learner(partial(self.learner.token_logprobs, whole.batch))
        preference: float | None = None
        if algorithm.prefers:
            reference_T = await self._in_learner(partial(self.learner.reference_logprobs, whole.batch))
            whole, preference = with_preferences(whole, old_T.astype(np.float64) - reference_T, algorithm.dpo_beta)
        clipped_T, loss, divisor = np.zeros(len(old_T), np.bool_), LossOutput(0.0, 0), 0.0
        for one in passes_over(whole, algorithm, old_T, seed=(self.config.seed, step)):
            if divisor:
                await self._in_learner(partial(self.learner.optim_step, self._params(divisor, ends_batch=False)))
            output = await self._in_learner(
                partial(self.learner.forward_backward, one.batch, loss_of_passes(algorithm))
            )
            if output.values is not None:
                clipped_T[one.tokens] |= output.values.clipped_T
            loss, divisor = loss + output, one.divisor
        loss.loss = loss.loss if preference is None else preference
        values = None if output.values is None else TokenValues(old_T, clipped_T)
        learned.add(part, whole, loss.mean_of(algorithm.epochs, values))
        learned.last_divisor = divisor

    async def _mismatch(self, learned: StepAccumulator) -> dict[str, float]:
        """How far engine and learner are apart with the learner's weights that the batch began with.

        They are still there to look at other rollouts with, unless the batch took several optimiser steps.
        """
        loss, version, recomputes = learned.loss, self.learner.version, self.engine.recomputes
        fresh = fresh_of_batch(learned.parts, learned.losses, version, recomputes=recomputes)
        if fresh is None:
            return {}
        stale_tokens = loss.tokens - fresh.tokens
        if fresh.tokens < EVIDENCE * loss.tokens and not self.config.algorithm.learns_in_passes:
            batch = probe(
                self.source.waiting(),
                self.config.algorithm,
                temperature=self.config.sampling.temperature,
                version=version,
                recomputes=recomputes,
                tokens=int(EVIDENCE * sum(len(part.batch.ids) for part in learned.parts)),
            )
            if batch is not None:
                logprobs_T = await self._in_learner(lambda: self.learner.token_logprobs(batch))
                fresh += FreshTokens.of(logprobs_T, batch.logprobs, batch.trained)
        return mismatch_metrics(fresh, loss, stale_tokens=stale_tokens)

    async def _part(self, step: int) -> BatchPart:
        """Groups of the batch of `step`. Where none can be made, the steps before it are saved."""
        if self.stop.is_set():  # groups may be there before the first wait
            raise StopRequested
        work = self.source.part(lambda done, total: self.monitor.phase("generate", done, total))
        try:
            part = await unless_stopped(self.stop, work)
            self.memory.mark("rollouts")
            if self.config.deployment.colocate:
                await self._device_to_learner()
            return part
        except WhetError:
            await self._save(step - 1)
            raise

    async def _in_learner(self, work: Callable[[], T]) -> T:
        with self.watchdog.waiting(
            "learn", "the run", "the learner's step", act=self._learner_hangs, blocks=self._blocks
        ):
            result = await self.run_blocking(work)
        self.memory.mark("learn")
        return result

    def _params(self, divisor: float, *, ends_batch: bool = True) -> OptimParams:
        algorithm, limit = self.config.algorithm, self.config.optimizer.max_grad_norm or None
        every = algorithm.reset_reference
        resets = bool(ends_batch and every and (self.learner.version + 1) % every == 0)
        decay = algorithm.reference_decay
        return OptimParams(
            self.config.learning_rate,
            divisor,
            limit,
            ends_batch,
            reference_share=float(resets) if decay is None else 1 - decay,
            critic_rate=algorithm.critic.learning_rate if algorithm.has_critic else None,
            resets_optimizer=resets and algorithm.reset_optimizer,
        )

    def _optimise(self, divisor: float) -> tuple[OptimOutput, WeightUpdate]:
        return self.learner.optim_step(self._params(divisor)), self.learner.publish()

    def _token_details(self, learned: StepAccumulator) -> list[list[TurnDetails]] | None:
        """What the learner made of each token, for the records, where they are to have it."""
        if not self.config.learner.keep_token_details:
            return None
        details: list[list[TurnDetails]] = []
        for assembled, loss in zip(learned.parts, learned.losses, strict=True):
            if loss.values is None:
                return None
            details += turn_details(assembled, loss.values)
        return details

    async def _device_to_learner(self) -> None:
        """The engine frees what it has on the device that it shares with the learner, which takes its turn there."""
        began = time.perf_counter()
        slept = await self._of_engine("sleep", "the engine to sleep", self.engine.sleep())
        if slept is None:
            raise StopRequested
        self._turns = {"engine/slept_bytes": float(slept), "time/sleep": time.perf_counter() - began}
        await self._in_learner(self.learner.restore)

    async def _hand_over(self, update: WeightUpdate) -> None:
        """New weights to the engine. One that does not take them ends the run, but the step counts: it was learned."""
        if not self.config.deployment.colocate:
            await self._of_engine("weights", "the engine to take weights", self.engine.load_weights(update))
            return
        await self._in_learner(self.learner.offload)
        began = time.perf_counter()
        await self._of_engine("wake", "the engine to wake with new weights", self.engine.wake(update))
        self._turns["time/wake"] = time.perf_counter() - began

    async def _of_engine(self, kind: str, awaited: str, work: Awaitable[T]) -> T | None:
        """What the engine returns; None where it does not, past the watchdog's deadline, and the run is to stop."""
        timeout = asyncio.timeout(None)

        def give_up(message: str) -> None:
            self.watchdog.stop(message)
            timeout.reschedule(asyncio.get_running_loop().time())

        with self.watchdog.waiting(kind, "the learner", awaited, act=give_up):
            try:
                async with timeout:
                    return await work
            except TimeoutError:
                if not timeout.expired():
                    raise
        return None

    def _state(self) -> dict[str, Any]:
        return {**self.source.state_dict(), **self.shaper.state_dict(), **self.adaptive.state_dict()}


@dataclass(slots=True)
class StepAccumulator:
    """What one optimiser step is made of: parts in the order in which they were learned; a whole batch is one part."""

    groups: list[Group] = field(default_factory=list)
    parts: list[Assembled] = field(default_factory=list)
    losses: list[LossOutput] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)  # that of the batch, once it is whole
    whole: bool = False
    wait_s: float = 0.0  # of the learner, for rollouts
    last_divisor: float | None = None  # that of the last optimiser step, where the batch takes several

    def add(self, part: BatchPart, assembled: Assembled, loss: LossOutput) -> None:
        self.groups += part.groups
        self.parts.append(assembled)
        self.losses.append(loss)
        if part.tally is not None:
            self.tally, self.whole = part.tally, True

    @property
    def loss(self) -> LossOutput:
        """Of the whole batch."""
        return reduce(operator.add, self.losses)

    @property
    def divisor(self) -> float:
        """What the loss of the whole batch is divided by."""
        return sum(part.divisor for part in self.parts)

    @property
    def left_divisor(self) -> float:
        """What the gradients that are held are divided by."""
        return self.divisor if self.last_divisor is None else self.last_divisor

    @property
    def advantages(self) -> list[list[float]]:
        """Of each rollout of each group."""
        return [advantages_G for part in self.parts for advantages_G in part.advantages]

    @property
    def sequences(self) -> list[TokenSequence]:
        """As sampled, those included that carry no loss."""
        return [sequence for part in self.parts for sequence in part.sequences]
