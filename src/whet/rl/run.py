"""From a config to a finished run: builds the parts, joins them in an `Orchestrator`, makes an `Outcome` of the rest.

Everything that can be wrong with a config is found before the run directory is made, cheap checks first: files and
directories, then environments, then the model. Importing this file does not import torch; the parts that need it do.
This file holds no training logic.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from whet.clients.usage import spending
from whet.envs.env_group import member_names
from whet.envs.environment import Environment
from whet.errors import ConfigError, TrainingError
from whet.inference.loading import load_policy, read_model
from whet.inference.protocol import Engine
from whet.rl.config import RunConfig
from whet.rl.data.curriculum import Curriculum, Pool
from whet.rl.data.lengths import Lengths
from whet.rl.data.reward_shaping import RewardShaper
from whet.rl.learner.make import make_learner
from whet.rl.learner.process import ProcessLearner
from whet.rl.loop.async_source import Stream
from whet.rl.loop.evaluation import Evaluation
from whet.rl.loop.group_filter import GroupFilter
from whet.rl.loop.group_runner import GroupRunner, TrainingEnv
from whet.rl.loop.orchestrator import Orchestrator, StopRequested, inline
from whet.rl.loop.rollout_buffer import PARTS, Backlog, Lead
from whet.rl.loop.source import Source
from whet.rl.loop.sync_source import Dispatcher
from whet.rl.monitors import Monitor, announce, console_and_others, trackers
from whet.rl.monitors.log import run_log
from whet.rl.monitors.protocol import Outcome, RunPlan
from whet.rl.monitors.redaction import Redactor
from whet.rl.preflight import check_models, load_environments
from whet.rl.storage.records import Records
from whet.rl.storage.run_directory import RunDirectory
from whet.rl.storage.starting_point import starting_adapter, starting_model
from whet.rl.storage.status import Status
from whet.rl.storage.weight_directory import weights_directory
from whet.rl.supervision.budgets import Budget
from whet.rl.supervision.ending import Ending
from whet.rl.supervision.engine_process import EngineProcess
from whet.rl.supervision.stopping import (
    end_the_process,
    explain_failure,
    export_weights,
    stall,
    stop_on_signals,
    with_report,
)
from whet.rl.supervision.watchdog_engine import WatchedEngine
from whet.rl.supervision.watchdog_thread import Watchdog
from whet.rollouts.garbage import what_is_loaded_stays
from whet.system import cancellation
from whet.system.env_files import load_env_files

if TYPE_CHECKING:
    from whet.inference.policy_client import PolicyClient
    from whet.rl.learner.torch_learner import TorchLearner

    AnyLearner = TorchLearner | ProcessLearner


def run_training(
    config: RunConfig, *, resume: bool = False, step: int | None = None, json_output: bool = False
) -> Outcome:
    """Train, from the start, from the newest checkpoint, or (resumed) from that of `step`.

    With `json_output` the terminal is left to the caller; the run directory is the same. Raises `WhetError` for a
    mistake that was found before training began; what goes wrong later is an `Outcome` in state `failed`.
    """
    load_env_files(config.env_file)
    directory = RunDirectory(config.directory)
    directory.check(config, resume=resume)
    check_models(config)
    announce(config.name, config.model, [env.label for env in config.env], quiet=json_output)
    environments, held_out = load_environments(config)
    redactor = Redactor.of(config.env_file, os.environ)
    tracking = trackers(config, redactor)

    engine_threads, learner_threads = config.threads()
    model = read_model(starting_model(config.model))
    if config.algorithm.router_replay and model.arch.experts is None:
        raise ConfigError(f"[algorithm] router_replay would have no effect: {config.model} has no experts")
    with ExitStack() as stack:
        scratch = stack.enter_context(weights_directory())
        sampling: dict[str, Any] = {
            "dtype": config.inference.dtype,
            "threads": engine_threads,
            "record_experts": config.algorithm.router_replay,
            "record_kept": config.algorithm.renormalise_cuts,
        }
        process = EngineProcess(model.path, scratch, **sampling) if config.engine_process else None
        if process is not None:  # it loads the model while this process loads the learner
            stack.callback(process.close)
        make = ProcessLearner if config.asynchronous else make_learner
        learner: AnyLearner = make(
            model.path,
            optimizer=config.optimizer,
            lora=starting_adapter(config.lora),
            max_steps=config.max_steps,
            seed=config.seed,
            threads=learner_threads,
            publish_directory=scratch,
            publish_dtype=config.inference.dtype,
            dtype=config.learner.dtype,
            token_budget=config.learner.micro_batch_tokens,
            activation_checkpointing=config.learner.activation_checkpointing,
            peak_tflops=config.learner.peak_tflops,
            reference=config.algorithm.reference if config.algorithm.kl_coef else None,
            reference_thread=config.asynchronous and learner_threads == 1,  # several are better used in each product
        )
        stack.callback(learner.close)
        sampler: Engine = load_policy(model, **sampling).engine if process is None else process.engine()
        directory.open(config, resume=resume)
        stack.callback(directory.close)
        children = [part.log for part in (process, learner) if isinstance(part, EngineProcess | ProcessLearner)]
        log = stack.enter_context(run_log(directory.logs, redactor, children))
        monitor = console_and_others(quiet=json_output, status=Status(directory.status), others=[log, *tracking])
        evaluated = held_out or [(env.name, env.env) for env in environments]
        watchdog = Watchdog(config.watchdog)
        lengths = Lengths()
        engine = WatchedEngine(sampler, watchdog, lengths)
        from whet.inference.policy_client import PolicyClient

        client = PolicyClient(engine, model.renderer, max_context=model.arch.max_context)
        spent = stack.enter_context(spending())
        ending = Ending(Budget(config.budget), config.early_stop, lambda: engine.tokens, spent, monitor.note)
        parts = (config, directory, environments, evaluated, client, learner, monitor, watchdog, ending, lengths)
        return _Run(*parts).execute(step)


@dataclass(slots=True)
class _Run:
    """The parts of one run, and what happens when it ends one way or another."""

    config: RunConfig
    directory: RunDirectory
    environments: list[TrainingEnv]
    held_out: list[tuple[str, Environment]]
    client: PolicyClient
    learner: AnyLearner
    monitor: Monitor
    watchdog: Watchdog
    ending: Ending
    lengths: Lengths = field(default_factory=Lengths)

    def execute(self, resume_step: int | None) -> Outcome:
        """Train until the end, an interruption or a failure; in each case the records and the report are left whole."""
        try:
            records = Records(self.directory, keep_checkpoints=self.config.checkpointing.keep_n_checkpoints)
            source, shaper = self._source(), RewardShaper(self.config.algorithm)
            step, state, passed_over = records.rewind(self.learner, resume_step)
            if state:
                source.load_state_dict(state, step)
                shaper.load_state_dict(state)
                self.ending.load_state_dict(state)
            self.monitor.start(self._plan(step + 1))
            for line in self.config.cautions:
                self.monitor.note(line)
            for line in passed_over:
                self.monitor.note(f"checkpoint passed over: {line}")
            for line in records.mended:
                self.monitor.note(line)
            outcome = self._train(step, records, source, shaper)
        except BaseException as error:
            stalled = stall(self.watchdog.failure, self.directory, self.learner.version)
            failure = stalled or explain_failure(error, self.directory)
            if failure is None:
                self.monitor.ended(Outcome("failed", self.learner.version, f"{type(error).__name__}: {error}"))
                raise
            outcome = Outcome(
                "failed",
                self.learner.version,
                failure,
                rollouts=self.directory.rollouts,
                next_command=self._resume_command() if any(self.directory.checkpoints.glob("step_*")) else None,
            )
        outcome = with_report(outcome, self.directory, self.monitor)
        self.monitor.ended(outcome)
        return outcome

    def _train(self, step: int, records: Records, source: Source, shaper: RewardShaper) -> Outcome:
        try:
            with what_is_loaded_stays():
                last = cancellation.run(self._orchestrate(step, records, source, shaper))
        except StopRequested:
            if self.watchdog.failure is not None:
                raise TrainingError(self.watchdog.failure) from None
            if self.ending.reason is not None:
                return self._ended(self.learner.version, self.ending.reason)
            return Outcome(
                "interrupted",
                self.learner.version,
                f"stopped after step {self.learner.version} of {self.config.max_steps}",
                rollouts=self.directory.rollouts,
                next_command=self._resume_command(),
            )
        return self._ended(last)

    def _ended(self, step: int, reason: str | None = None) -> Outcome:
        """The outcome of a run that has done what it was to do, or (`reason`) all it may."""
        weights = export_weights(self.learner, self.directory, step, self.config.lora)
        return Outcome(
            "finished",
            step,
            f"{step} steps" if reason is None else f"after {step} of {self.config.max_steps} steps: {reason}",
            weights=weights,
            rollouts=self.directory.rollouts,
            next_command=f"whet eval run {self.config.env[0].id} -m {weights}"
            if reason is None
            else self._resume_command(),
        )

    async def _orchestrate(self, step: int, records: Records, source: Source, shaper: RewardShaper) -> int:
        config = self.config
        orchestrator = Orchestrator(
            config=config,
            source=source,
            engine=self.client.engine,
            learner=self.learner,
            evaluate=Evaluation(config, self.held_out, self.client, self.monitor),
            records=records,
            monitor=self.monitor,
            shaper=shaper,
            beside=asyncio.to_thread if config.asynchronous else inline,
            watchdog=self.watchdog,
            ending=self.ending,
        )
        watching = self.watchdog.on_duty(
            stop=orchestrator.stop.set, say=self.monitor.note, last_resort=self._end_the_process
        )
        stopping = stop_on_signals(
            orchestrator.stop, self.monitor, self._resume_command(), lambda: self.learner.version
        )
        with stopping, watching:
            try:
                if step or config.lora is not None:
                    await self.client.engine.load_weights(self.learner.publish())
                self.ending.begin(orchestrator.stop, records.evaluations)
                return await orchestrator.run(step + 1)
            finally:
                await self._close(source)

    async def _close(self, source: Source) -> None:
        """End what is in flight; something may not answer, and is waited for briefly."""
        closing = asyncio.ensure_future(self._close_in_order(source))
        await asyncio.wait({closing}, timeout=2 * cancellation.GRACE_S)
        if closing.done():
            closing.result()

    async def _close_in_order(self, source: Source) -> None:
        await source.close()
        await self.client.engine.close()

    def _source(self) -> Source:
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
            watchdog=self.watchdog,
            lengths=self.lengths,
        )
        min_variance = config.buffer.difficulty_threshold
        if not config.asynchronous:
            return Dispatcher(runner, self._curriculum(), config.groups_per_batch, min_variance)
        lead = Lead(
            config.groups_per_batch,
            config.max_async_level,
            config.oversampling_factor,
            config.max_off_policy_steps,
            parts=PARTS if config.algorithm.learns_in_parts else 1,
        )
        return Stream(runner, self._curriculum(), Backlog(lead, GroupFilter(min_variance)))

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

    def _plan(self, first_step: int) -> RunPlan:
        return RunPlan(
            name=self.config.name,
            directory=self.directory.path,
            model=self.config.model,
            environments=[env.name for env in self.environments],
            members={
                env.name: [f"{env.name}/{member}" for member in members]
                for env in self.environments
                if (members := member_names(env.env))
            },
            batch_size=self.config.batch_size,
            rollouts_per_example=self.config.rollouts_per_example,
            max_steps=self.config.max_steps,
            first_step=first_step,
            parameters=self.learner.parameters,
            trained_parameters=self.learner.trained_parameters,
            seed=self.config.seed,
        )

    def _end_the_process(self, message: str) -> None:
        again = self._resume_command()
        end_the_process(self.monitor, Outcome("failed", self.learner.version, message, next_command=again))

    def _resume_command(self) -> str:
        return f"whet train run {self.directory.config} --resume"
