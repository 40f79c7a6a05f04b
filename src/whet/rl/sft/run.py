"""From a config to a finished run of supervised fine-tuning: builds the parts, runs the loop, makes an `Outcome`.

Everything that can be wrong with config and data is found before the run directory is made; files and directories
that are missing before torch is imported.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from whet.clients.usage import Spending
from whet.envs.environment import Environment
from whet.errors import RunError, TrainingError
from whet.inference.loading import load_policy, read_model
from whet.rl.config import InferenceConfig
from whet.rl.learner.make import make_learner
from whet.rl.loop.evaluation import Evaluation
from whet.rl.monitors import Monitor, announce, console_and_others, trackers
from whet.rl.monitors.log import run_log
from whet.rl.monitors.protocol import EvalReport, Outcome, RunPlan
from whet.rl.monitors.redaction import Redactor
from whet.rl.preflight import load_held_out
from whet.rl.sft.batches import Batches
from whet.rl.sft.config import VALIDATION_LOSS, SftConfig
from whet.rl.sft.data import SftData, load_data
from whet.rl.sft.loop import Evaluate, SftLoop
from whet.rl.sft.sources import check_path
from whet.rl.storage.records import Records
from whet.rl.storage.run_directory import RunDirectory
from whet.rl.storage.starting_point import check_starting_point, starting_adapter, starting_model
from whet.rl.storage.status import Status
from whet.rl.storage.weight_directory import weights_directory
from whet.rl.supervision.budgets import Budget
from whet.rl.supervision.ending import Ending
from whet.rl.supervision.stopping import (
    StopRequested,
    end_the_process,
    explain_failure,
    export_weights,
    stall,
    stop_on_signals,
    with_report,
)
from whet.rl.supervision.watchdog_engine import WatchedEngine
from whet.rl.supervision.watchdog_thread import Watchdog
from whet.system import cancellation
from whet.system.env_files import load_env_files

if TYPE_CHECKING:
    from whet.inference.policy_client import PolicyClient
    from whet.rl.learner.torch_learner import TorchLearner


def run_sft(config: SftConfig, *, resume: bool = False, step: int | None = None, json_output: bool = False) -> Outcome:
    """Fine-tune, from the start, from the newest checkpoint, or (resumed) from that of `step`.

    With `json_output` the terminal is left to the caller; the run directory is the same. Raises `WhetError` for a
    mistake that was found before training began; what goes wrong later is an `Outcome` in state `failed`.
    """
    load_env_files(config.env_file)
    directory = RunDirectory(config.directory)
    directory.check(config, resume=resume)
    check_starting_point(config.model, config.lora)
    paths = [section.path for section in (config.data, config.validation) if section and section.path is not None]
    for path in paths:
        check_path(path)
    announce(config.name, config.model, [*map(str, paths)] or [str(config.data.dataset)], quiet=json_output)
    held_out = load_held_out(() if config.eval is None else config.eval.env)
    redactor = Redactor.of(config.env_file, os.environ)
    tracking = trackers(config, redactor)
    model = read_model(starting_model(config.model))
    data = load_data(config, model.renderer, context=model.arch.max_context)
    batches = data.batches(config)
    last_step = config.max_steps or batches.left()

    with ExitStack() as stack:
        scratch = stack.enter_context(weights_directory())
        threads = config.deployment.torch_threads()
        inference = config.inference or InferenceConfig()
        watchdog = Watchdog(config.watchdog)
        client = None
        if held_out:
            from whet.inference.policy_client import PolicyClient

            engine = WatchedEngine(load_policy(model, dtype=inference.dtype, threads=threads).engine, watchdog)
            client = PolicyClient(engine, model.renderer, max_context=model.arch.max_context)
        learner = make_learner(
            model.path,
            optimizer=config.optimizer,
            lora=starting_adapter(config.lora),
            max_steps=last_step,
            seed=config.seed,
            threads=threads,
            publish_directory=scratch,
            publish_dtype=inference.dtype,
            dtype=config.learner.dtype,
            token_budget=config.learner.micro_batch_tokens,
            activation_checkpointing=config.learner.activation_checkpointing,
            peak_tflops=config.learner.peak_tflops,
        )
        stack.callback(learner.close)
        directory.open(config, resume=resume)
        stack.callback(directory.close)
        log = stack.enter_context(run_log(directory.logs, redactor))
        monitor = console_and_others(quiet=json_output, status=Status(directory.status), others=[log, *tracking])
        budget = Budget(config.budget, counted="trained")
        ending = Ending(budget, config.early_stop, lambda: batches.tokens_taken, Spending(), monitor.note)
        return _Run(
            config, directory, data, batches, last_step, held_out, client, learner, monitor, watchdog, ending
        ).execute(step)


@dataclass(slots=True)
class _Run:
    """The parts of one run, and what happens when it ends one way or another."""

    config: SftConfig
    directory: RunDirectory
    data: SftData
    batches: Batches
    last_step: int
    held_out: list[tuple[str, Environment]]
    client: PolicyClient | None  # of the policy that is evaluated
    learner: TorchLearner
    monitor: Monitor
    watchdog: Watchdog
    ending: Ending

    def execute(self, resume_step: int | None) -> Outcome:
        """Train until the end, an interruption or a failure; in each case the records and the report are left whole."""
        try:
            records = Records(self.directory, keep_checkpoints=self.config.checkpointing.keep_n_checkpoints)
            step, state, passed_over = records.rewind(self.learner, resume_step)
            if state:
                self._take_up(step, state.get("rows_taken"), state.get("data"))
                self.ending.load_state_dict(state)
            self.monitor.start(self._plan(step + 1))
            for line in [f"checkpoint passed over: {line}" for line in passed_over] + self.data.notes:
                self.monitor.note(line)
            outcome = self._train(step, records)
        except BaseException as error:
            stalled = stall(self.watchdog.failure, self.directory, self.learner.version)
            failure = stalled or explain_failure(error, self.directory)
            if failure is None:
                self.monitor.ended(Outcome("failed", self.learner.version, f"{type(error).__name__}: {error}"))
                raise
            again = self._resume_command() if any(self.directory.checkpoints.glob("step_*")) else None
            outcome = Outcome("failed", self.learner.version, failure, next_command=again)
        outcome = with_report(outcome, self.directory, self.monitor)
        self.monitor.ended(outcome)
        return outcome

    def _take_up(self, step: int, taken: object, fingerprint: object) -> None:
        """Go on behind the rows that were trained. Raises `RunError` where the rows are not the same any more."""
        if fingerprint != self.data.fingerprint or not isinstance(taken, int):
            raise RunError(
                f"the data is not what the checkpoint of step {step} was trained on, so rows would be trained twice or "
                "never. Restore the files of [data] and [validation], or start another run from the exported weights."
            )
        self.batches.taken = taken
        if self.batches.epochs is not None:
            self.last_step = step + self.batches.left()

    def _train(self, step: int, records: Records) -> Outcome:
        try:
            last = cancellation.run(self._loop(step, records))
        except StopRequested:
            done, planned = self.learner.version, self.last_step
            if self.watchdog.failure is not None:
                raise TrainingError(self.watchdog.failure) from None
            if self.ending.reason is not None:
                weights = export_weights(self.learner, self.directory, done, self.config.lora)
                message = f"after {done} of {planned} steps: {self.ending.reason}"
                return Outcome("finished", done, message, weights=weights, next_command=self._resume_command())
            message = f"stopped after step {done} of {planned}"
            return Outcome("interrupted", done, message, next_command=self._resume_command())
        weights = export_weights(self.learner, self.directory, last, self.config.lora)
        return Outcome("finished", last, f"{last} steps", weights=weights, next_command=self._next(weights))

    async def _loop(self, step: int, records: Records) -> int:
        loop = SftLoop(
            config=self.config,
            data=self.data,
            batches=self.batches,
            last_step=self.last_step,
            learner=self.learner,
            records=records,
            monitor=self.monitor,
            evaluate=self._evaluate(),
            watchdog=self.watchdog,
            ending=self.ending,
        )
        watching = self.watchdog.on_duty(stop=loop.stop.set, say=self.monitor.note, last_resort=self._end_the_process)
        stopping = stop_on_signals(loop.stop, self.monitor, self._resume_command(), lambda: self.learner.version)
        with stopping, watching:
            try:
                self.ending.begin(loop.stop, records.evaluations, records.curve(VALIDATION_LOSS))
                return await loop.run(step + 1)
            finally:
                if self.client is not None:
                    await self.client.engine.close()

    def _evaluate(self) -> Evaluate | None:
        """Scores of the weights of now; None where nothing is evaluated."""
        if self.client is None:
            return None
        engine = self.client.engine
        evaluation = Evaluation(self.config, self.held_out, self.client, self.monitor)

        async def evaluate(moment: str, step: int) -> EvalReport:
            if step or self.config.lora is not None:
                await engine.load_weights(self.learner.publish())
            return await evaluation(moment, step, engine.version)

        return evaluate

    def _plan(self, first_step: int) -> RunPlan:
        limit = f" or {self.config.batch_tokens} tokens" if self.config.batch_tokens else ""
        return RunPlan(
            name=self.config.name,
            directory=self.directory.path,
            model=self.config.model,
            environments=[],
            batch_size=self.config.batch_size,
            rollouts_per_example=1,
            max_steps=self.last_step,
            first_step=first_step,
            parameters=self.learner.parameters,
            trained_parameters=self.learner.trained_parameters,
            seed=self.config.seed,
            batch=f"{self.config.batch_size} of {len(self.data.train)} rows{limit}",
        )

    def _next(self, weights: Path) -> str | None:
        return f"whet eval run {self.config.eval.env[0].id} -m {weights}" if self.config.eval else None

    def _end_the_process(self, message: str) -> None:
        again = self._resume_command()
        end_the_process(self.monitor, Outcome("failed", self.learner.version, message, next_command=again))

    def _resume_command(self) -> str:
        return f"whet train sft {self.directory.config} --resume"
