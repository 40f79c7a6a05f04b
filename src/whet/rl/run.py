"""From a config to a finished run: builds the parts of reinforcement learning and joins them in an `Orchestrator`.

Everything that can be wrong with a config is found before the run directory is made, cheap checks first: files and
directories, then environments, then the model; one whose engine or learner cannot be made is removed. Importing this
file does not import torch; the parts that need it do. This file holds no training logic; how a run begins and ends is
in `supervision/lifecycle.py`.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.clients.usage import spending
from whet.envs.env_group import member_names
from whet.envs.environment import Environment
from whet.errors import ConfigError
from whet.inference.loading import context_of
from whet.inference.protocol import sampling_text
from whet.rl.config import RunConfig
from whet.rl.data.adaptive_weights import AdaptiveWeights
from whet.rl.data.assembly import RewardShaper
from whet.rl.data.curriculum import Curriculum, Pool
from whet.rl.data.metrics import Lengths
from whet.rl.data.teacher import HintedPrompts
from whet.rl.loop.endpoint_teacher import EndpointTeacher
from whet.rl.loop.group import BatchSource, GroupFilter
from whet.rl.loop.group_runner import GroupRunner, TrainingEnv, environment_workers
from whet.rl.loop.orchestrator import Orchestrator
from whet.rl.loop.rollout_buffer import PARTS, Lead, RolloutBuffer
from whet.rl.loop.sources import AsyncSource, SyncSource
from whet.rl.loop.training_loop import HeldOutEvaluation, inline
from whet.rl.monitors.protocol import Outcome
from whet.rl.plan import remarks
from whet.rl.storage.records import Records
from whet.rl.stored.export import starting_model
from whet.rl.supervision.backends import Backend, opened_backend
from whet.rl.supervision.ending import Budget, Ending
from whet.rl.supervision.lifecycle import TrainingRun, begin
from whet.rl.supervision.watchdog_thread import Watchdog, WatchedEngine
from whet.rollouts.workers.pool import CLOSE_S, WorkerPool
from whet.system import cancellation
from whet.system.quiet import Quiet

if TYPE_CHECKING:
    from whet.inference.policy_client import PolicyClient


def run_training(
    config: RunConfig, *, resume: bool = False, step: int | None = None, json_output: bool = False
) -> Outcome:
    """Train, from the start, from the newest checkpoint, or (resumed) from that of `step`.

    With `json_output` the terminal is left to the caller; the run directory is the same. Raises `WhetError` for a
    mistake that was found before training began; what goes wrong later is an `Outcome` in state `failed`.
    """
    with ExitStack() as stack:
        run = stack.enter_context(begin(config, resume=resume, quiet=json_output))
        config, model = run.plan.config, run.model
        run.memory.said(run.plan.memory_by_process)
        if config.algorithm.router_replay and model.arch.experts is None:
            raise ConfigError(
                f"[algorithm] router_replay would have no effect: {config.model} has no experts to record"
            )
        if config.algorithm.reference_decay and config.lora is None and config.learner.weights_dtype == "bfloat16":
            raise ConfigError(
                "[algorithm] reference_decay moves the reference by less than bfloat16 can hold. Set "
                '[learner] weights_dtype = "float32", or train with [lora].'
            )
        backend = stack.enter_context(opened_backend(run.plan, model, run.directory.logs))
        run.memory.published = backend.scratch
        learner = backend.learner()
        stack.callback(learner.close)
        if config.deployment.colocate:  # the engine is first
            learner.offload()
        sampler = backend.engine()
        monitor = stack.enter_context(run.watched(learner, backend.log))
        monitor.watch(lambda: sampling_text(sampler))
        watchdog, lengths = Watchdog(config.watchdog), Lengths()
        engine = WatchedEngine(sampler, watchdog, lengths)
        from whet.inference.policy_client import PolicyClient

        spent = stack.enter_context(spending())
        return ReinforcementRun(
            config=config,
            directory=run.directory,
            learner=learner,
            monitor=monitor,
            watchdog=watchdog,
            memory=run.memory,
            ending=Ending(Budget(config.budget), config.early_stop, lambda: engine.tokens, spent, monitor.note),
            last_step=config.max_steps,
            environments=run.environments,
            held_out=run.held_out or [(env.name, env.env) for env in run.environments],
            client=PolicyClient(engine, model.renderer, max_context=backend.max_context),
            lengths=lengths,
            backend=backend,
            teacher=None if config.teacher is None else EndpointTeacher(config.teacher, model.tokenizer),
        ).execute(step)


@dataclass(slots=True)
class ReinforcementRun(TrainingRun):
    """Groups of rollouts, sampled by the policy that learns from them."""

    command = "whet train run"
    has_rollouts = True

    config: RunConfig
    environments: list[TrainingEnv]
    held_out: list[tuple[str, Environment]]
    client: PolicyClient
    lengths: Lengths
    backend: Backend
    source: BatchSource = field(init=False)
    shaper: RewardShaper = field(init=False)
    adaptive: AdaptiveWeights = field(init=False)
    workers: WorkerPool | None = None
    teacher: EndpointTeacher | None = None

    def _restore(self, step: int, state: dict[str, Any]) -> None:
        self.source, self.shaper = self.make_source(), RewardShaper(self.config.algorithm)
        self.adaptive = AdaptiveWeights(self.config.algorithm)
        if state:
            self.source.load_state_dict(state, step)
            self.shaper.load_state_dict(state)
            self.adaptive.load_state_dict(state)

    def _notes(self) -> Sequence[str]:
        return [*remarks(self.config, self.client.max_context), *_default_limit(self.config)]

    def _loop(self, records: Records) -> Orchestrator:
        config, engine = self.config, self.client.engine
        evaluation = HeldOutEvaluation(config, self.held_out, self.client, self.monitor)
        prompts = HintedPrompts(self.client.renderer, config.hinted, self.client.max_context)
        return Orchestrator(
            config=config,
            last_step=config.last_step,
            source=self.source,
            engine=engine,
            learner=self.learner,
            evaluate=lambda moment, step: evaluation(moment, step, engine.version),
            records=records,
            monitor=self.monitor,
            shaper=self.shaper,
            adaptive=self.adaptive,
            prompts=prompts if config.hinted else None,
            teacher=self.teacher,
            run_blocking=asyncio.to_thread if config.asynchronous or config.ranks > 1 else inline,
            watchdog=self.watchdog,
            memory=self.memory,
            ending=self.ending,
        )

    async def _publish(self, step: int, *, again: bool) -> None:
        self.backend.when_lost(self.watchdog.give_up)
        if self.teacher is not None and not again:
            await self.teacher.check()
        if self.workers is not None and not again:
            await self.workers.__aenter__()
            quiet = Quiet.here()
            if quiet is not None and self.config.repeatable:
                quiet.outside = self.workers.at_work
        pool = self.backend.pool
        if pool is not None and not again:
            self.monitor.note(f"waiting for {self.backend.describe()}")
            await pool.start()
            if (most := self.backend.max_context) < self.client.max_context:
                self.monitor.note(
                    f"sequences have {most} tokens at most, where the model's context is {self.client.max_context}: "
                    "a server of base_url was started with that --max-model-len; a larger one leaves answers more room"
                )
                self.client.max_context = most
        # A server that was started elsewhere may have the weights of another run.
        if step or again or self.config.lora is not None or pool is not None:
            await self.client.engine.load_weights(self.learner.publish())

    async def _stop_rollouts(self) -> None:
        await self.source.close()

    async def _close(self) -> None:
        """End what is in flight; something may not answer, and is waited for briefly."""
        closing = asyncio.ensure_future(self._close_in_order())
        workers_s = 0.0 if self.workers is None else 2 * CLOSE_S
        await asyncio.wait({closing}, timeout=2 * cancellation.GRACE_S + workers_s)
        if closing.done():
            closing.result()

    async def _close_in_order(self) -> None:
        await self.source.close()
        if self.workers is not None:
            await self.workers.__aexit__()
        if self.teacher is not None:
            await self.teacher.close()
        await self.client.engine.close()

    def _plan(self) -> Mapping[str, Any]:
        return {
            "environments": [env.name for env in self.environments],
            "members": {
                env.name: [f"{env.name}/{member}" for member in members]
                for env in self.environments
                if (members := member_names(env.env))
            },
            "batch_size": self.config.batch_size,
            "rollouts_per_example": self.config.rollouts_per_example,
        }

    def _next_command(self, weights: Path) -> str:
        return f"whet eval run {shlex.quote(self.config.env[0].id)} -m {weights}"

    def make_source(self) -> BatchSource:
        """Where batches come from: one after the other, or all the time."""
        config = self.config
        runner = GroupRunner(
            environments=self.environments,
            client=self.client,
            model=config.model,
            sampling_args=config.sampling.args(),
            temperature=self._temperature if config.sampling.temp_scheduler else None,
            rollouts_per_example=config.rollouts_per_example,
            max_concurrent=config.max_concurrent,
            seed=config.seed,
            max_retries=config.max_retries,
            retry_delay=0.0 if config.repeatable else 1.0,  # a timer would decide what is sampled together
            watchdog=self.watchdog,
            lengths=self.lengths,
        )
        if config.workers_per_env > 1:
            runner.workers = self.workers = self.workers or environment_workers(
                config.env,
                self.environments,
                self.client,
                runner.recipe,
                lambda text: self.monitor.note(text),
                workers=config.workers_per_env,
                max_concurrent=config.max_concurrent,
                in_order=config.repeatable,
                start=self.backend.start_worker,
            )
        new_filter = partial(
            GroupFilter,
            config.buffer.difficulty_threshold,
            max_errored_groups=config.buffer.max_errored_groups,
            min_group_size=config.buffer.min_group_size,
        )
        if not config.asynchronous:
            return SyncSource(runner, self._curriculum(), config.groups_per_batch, new_filter)
        lead = Lead(
            config.groups_per_batch,
            config.max_async_level,
            config.oversampling_factor,
            config.max_off_policy_steps,
            parts=PARTS if config.algorithm.learns_in_parts and not config.distilled else 1,
        )
        return AsyncSource(runner, self._curriculum(), RolloutBuffer(lead, new_filter()))

    def _temperature(self) -> float:
        """Of rollouts that begin now."""
        schedule = self.config.sampling.temp_scheduler
        assert schedule is not None
        return schedule.at(self.client.engine.version, self.config.max_steps)

    def _curriculum(self) -> Curriculum:
        pools = [
            Pool(env.name, len(env.rows), weight)
            for env, weight in zip(self.environments, self.config.env_weights, strict=True)
        ]
        return self.config.buffer.make_curriculum(pools, self.config.seed)


def _default_limit(config: RunConfig) -> list[str]:
    """A line about how long answers may become, where the config does not say it."""
    if "max_tokens" in config.sampling.model_fields_set:
        return []
    most, context = config.sampling.max_tokens, context_of(starting_model(config.model))
    whole = "" if context is None else f", in all of its turns until the context of {context:,} tokens is full"
    return [
        f"[sampling] max_tokens is not set: a rollout has at most {most} new tokens in a turn{whole}; the "
        f"{config.batch_size} rollouts of a step up to {config.batch_size * most:,} tokens for each turn"
    ]
