"""A training run from its first check to its last file: what reinforcement learning and fine-tuning share.

    begin: plan, checks, environments, model ─▶ (learner) ─▶ watched: lock, log, monitors ─▶ TrainingRun.execute

However a run ends (its last step, a budget, a signal, the watchdog, a failure), its records are left whole, a report is
written, and the outcome has the command that continues it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from whet.errors import LearnerLostError, TrainingError
from whet.inference.loading import ModelFiles, read_model
from whet.records.directory import failure_message, report_or_note
from whet.records.lock import EndState
from whet.rl.config import RunConfig
from whet.rl.estimate import longest_prompt
from whet.rl.learner.ranks.ranks_learner import RanksLearner
from whet.rl.loop.group_runner import TrainingEnv
from whet.rl.loop.training_loop import TrainingLoop
from whet.rl.monitors import Monitor, announce, console_and_others
from whet.rl.monitors.log import run_log
from whet.rl.monitors.protocol import Outcome, RunPlan
from whet.rl.monitors.trackers import trackers
from whet.rl.plan import (
    ConfigT,
    HeldOut,
    TrainingPlan,
    check_inputs,
    environment_sections,
    load_environments,
    plan_training,
)
from whet.rl.report import write_report
from whet.rl.sections.training import TrainingConfig
from whet.rl.sft.config import VALIDATION_LOSS
from whet.rl.storage.checkpoints import checkpoints_in
from whet.rl.storage.records import Records
from whet.rl.storage.run_directory import RunDirectory, Status, check_identities, identities_of, write_identities
from whet.rl.stored.export import starting_model
from whet.rl.supervision.child_log import ChildLog
from whet.rl.supervision.ending import Ending, StopRequested, unless_stopped
from whet.rl.supervision.memory import RunMemory
from whet.rl.supervision.watchdog_thread import Watchdog
from whet.rollouts.driver import what_is_loaded_stays
from whet.system import cancellation
from whet.system.env_files import load_env_files
from whet.system.files import replace_directory
from whet.system.redaction import KNOWN
from whet.system.signals import on_stopping_signals

if TYPE_CHECKING:
    from whet.rl.supervision.backends import AnyLearner


@dataclass(frozen=True, slots=True)
class BegunRun(Generic[ConfigT]):
    """A run whose config has been checked, with all that is loaded before its learner."""

    plan: TrainingPlan[ConfigT]
    directory: RunDirectory
    environments: list[TrainingEnv]
    held_out: HeldOut
    model: ModelFiles
    trackers: list[Monitor]
    quiet: bool
    memory: RunMemory

    @contextmanager
    def watched(self, learner: AnyLearner, engine: ChildLog | None = None) -> Iterator[Monitor]:
        """Watch the run until the block ends.

        What is notified is the terminal (unless `quiet`), status.json, the log, and trackers. What a learner or an
        `engine` in a process of its own logs is in the log of the run.
        """
        children = [] if engine is None else [engine]
        if isinstance(learner, RanksLearner):
            children.append(learner.log)
        with run_log(self.directory.logs, KNOWN, children) as log:
            others = [log, *self.trackers]
            yield console_and_others(quiet=self.quiet, status=Status(self.directory.status), others=others)


@contextmanager
def begin(config: ConfigT, *, resume: bool, quiet: bool) -> Iterator[BegunRun[ConfigT]]:
    """Plan and check a run, cheap checks first, load environments and the model's files, and open its directory.

    The first line of the run names the model and what it learns from. The directory is locked until the block ends, and
    removed with all that it has where a new run ends before it is watched. Raises `WhetError` for what is missing, for
    a directory that cannot be used, and for a wrong model, environment or file of data.
    """
    plan = plan_training(config, resume=resume)
    plan.check()
    if isinstance(config, RunConfig):
        plan.check_memory()
    config, memory = plan.config, RunMemory()
    load_env_files(config.env_file)
    directory = RunDirectory(config.directory)
    directory.check(config, resume=resume)
    check_inputs(config)
    announce(config.name, config.model, config.learns_from, quiet=quiet)
    environments, held_out = load_environments(config)
    if environments:
        plan = replace(plan, prompt=longest_prompt(config.model, environments))
        plan.check_memory()
    identities = identities_of(*environment_sections(config))
    if resume:
        check_identities(directory.path, identities)
    monitors, model = trackers(config, KNOWN), read_model(starting_model(config.model))
    directory.open(config, resume=resume)
    try:
        write_identities(directory.path, identities)
        yield BegunRun(plan, directory, environments, held_out, model, monitors, quiet, memory)
    finally:
        if not resume and not directory.status.is_file():
            shutil.rmtree(directory.path, ignore_errors=True)
        directory.close()


@dataclass(slots=True)
class TrainingRun(ABC):
    """The parts of one run, and what happens when it ends one way or another. A subclass has a kind of training."""

    command: ClassVar[str]
    """The command that begins and continues such a run: "whet train run"."""
    has_rollouts: ClassVar[bool]

    config: TrainingConfig
    directory: RunDirectory
    learner: AnyLearner
    monitor: Monitor
    watchdog: Watchdog
    memory: RunMemory
    ending: Ending
    last_step: int

    def execute(self, resume_step: int | None) -> Outcome:
        """Train until the end, an interruption or a failure; in each case the records and the report are left whole."""
        try:
            records = Records(self.directory, keep_checkpoints=self.config.checkpointing.keep_n_checkpoints)
            step, state, passed_over = records.rewind(self.learner, resume_step)
            self._restore(step, state)
            if state:
                self.ending.load_state_dict(state)
            self.monitor.start(
                RunPlan(
                    name=self.config.name,
                    directory=self.directory.path,
                    model=self.config.model,
                    max_steps=self.last_step,
                    first_step=step + 1,
                    parameters=self.learner.parameters,
                    trained_parameters=self.learner.trained_parameters,
                    seed=self.config.seed,
                    **self._plan(),
                )
            )
            self._note([*self._notes(), *self._restored(passed_over), *records.repaired])
            outcome = self._train(step, records)
        except BaseException as error:
            failure = self._stall() or failure_message(error, self.directory.path)
            if failure is None:
                self.monitor.ended(Outcome("failed", self.learner.version, f"{type(error).__name__}: {error}"))
                raise
            again = self._resume_command if any(self.directory.checkpoints.glob("step_*")) else None
            outcome = self._outcome("failed", self.learner.version, failure, next_command=again)
        outcome = replace(outcome, report=report_or_note(write_report, self.directory.path, self.monitor.note))
        self.monitor.ended(outcome)
        return outcome

    @abstractmethod
    def _restore(self, step: int, state: dict[str, Any]) -> None:
        """Make the source of the data, in the `state` of the checkpoint of `step`; {} where training begins."""

    @abstractmethod
    def _loop(self, records: Records) -> TrainingLoop: ...

    async def _publish(self, step: int, *, again: bool) -> None:
        """Give the engine the weights of `step`, where it has other ones: at first, or `again`, after a restart."""
        return None

    async def _stop_rollouts(self) -> None:
        """End what is in flight; the engine is used again."""
        return None

    @abstractmethod
    async def _close(self) -> None:
        """End what is in flight, and the engine."""

    @abstractmethod
    def _plan(self) -> Mapping[str, Any]:
        """Fields of the `RunPlan` that only this kind of training has."""

    @abstractmethod
    def _notes(self) -> Sequence[str]:
        """Lines for the user about config or data, before the first step."""

    @abstractmethod
    def _next_command(self, weights: Path) -> str | None:
        """What to do with the weights of a finished run."""

    def _train(self, step: int, records: Records) -> Outcome:
        try:
            with what_is_loaded_stays():
                last = cancellation.run(self._drive(step, records))
        except StopRequested:
            done = self.learner.version
            if self.watchdog.failure is not None:
                raise TrainingError(self.watchdog.failure) from None
            if self.ending.reason is None:
                message = f"stopped after step {done} of {self.last_step}"
                return self._outcome("interrupted", done, message, next_command=self._resume_command)
            message, reached = f"after {done} of {self.last_step} steps: {self.ending.reason}", False
        else:
            done, message, reached = last, f"{last} steps", last >= self.last_step
            if not reached:
                message = f"after {last} of {self.last_step} steps: {self.ending.budget.examples_spent()}"
        weights = self._export(done)
        after = self._next_command(weights) if reached else self._resume_command
        return self._outcome("finished", done, message, weights=weights, next_command=after)

    async def _drive(self, step: int, records: Records) -> int:
        stop, restarts = asyncio.Event(), 0
        self.watchdog.on_tick = self.memory.poll
        watching = self.watchdog.on_duty(stop=stop.set, say=self.monitor.note, last_resort=self._end_the_process)
        with self._stopped_by_signals(stop), watching:
            try:
                while True:
                    try:
                        if restarts:
                            step = await self._rewind_again(records)
                        return await self._run_loop(step, records, stop, again=restarts > 0)
                    except LearnerLostError as error:
                        restarts += 1
                        self._check_restart(error, restarts, stopped=stop.is_set())
                        await self._stop_rollouts()
            finally:
                await self._close()

    async def _run_loop(self, step: int, records: Records, stop: asyncio.Event, *, again: bool) -> int:
        loop = self._loop(records)
        loop.stop = stop
        await unless_stopped(stop, self._publish(step, again=again))
        self.ending.begin(stop, records.evaluations, records.curve(VALIDATION_LOSS))
        return await loop.run(step + 1)

    def _check_restart(self, error: LearnerLostError, restarts: int, *, stopped: bool) -> None:
        """Say that the learner starts again, or raise `TrainingError` where it may not."""
        limit = self.config.learner.max_restarts
        if stopped or self.watchdog.failure is not None:
            raise TrainingError(f"{error}, while the run was being stopped") from None
        if restarts > limit:
            after = f" after {limit} restart{'s' * (limit != 1)}" if limit else ""
            raise TrainingError(f"{error}; the run ends{after} (learner.max_restarts = {limit})") from None
        newest = next(iter(checkpoints_in(self.directory.checkpoints)), None)
        start = "the beginning: there is no checkpoint" if newest is None else f"the checkpoint of step {newest.step}"
        self.monitor.note(f"{error}. The learner starts again from {start} ({restarts} of {limit} restarts)")

    def _restored(self, passed_over: Sequence[str]) -> list[str]:
        """Lines about the learner that has just been loaded: where its ranks are, which checkpoints are damaged."""
        ranks = []
        if isinstance(self.learner, RanksLearner) and self.config.ranks > 1:
            ranks = [f"the learner is divided: {self.learner.describe()}"]
        return ranks + [f"checkpoint passed over: {line}" for line in passed_over]

    def _note(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.monitor.note(line)

    async def _rewind_again(self, records: Records) -> int:
        """The learner started again, and all else as the newest checkpoint has it, whose step is returned."""
        repaired = len(records.repaired)
        with self.watchdog.waiting("restart", "the run", "the learner to start again"):
            assert isinstance(self.learner, RanksLearner), "no other learner is lost alone"
            await asyncio.to_thread(self.learner.restart)
            step, state, passed_over = await asyncio.to_thread(records.rewind, self.learner)
        self._note([*self._restored(passed_over), *records.repaired[repaired:]])
        self._restore(step, state)
        self.ending.load_state_dict(state)
        self.monitor.rewound(step)
        return step

    def _outcome(self, state: EndState, step: int, message: str, **fields: Any) -> Outcome:
        rollouts = self.directory.rollouts if self.has_rollouts else None
        return Outcome(state, step, message, rollouts=rollouts, **fields)

    def _export(self, step: int) -> Path:
        """Write the trained weights: an adapter (and the whole model, if it is to be merged), or a whole model."""
        lora, dtype = self.config.lora, self.config.checkpointing.export_dtype
        if lora is not None and lora.merge:
            replace_directory(self.directory.model, partial(self.learner.export_merged, dtype=dtype))
        target = self.directory.model if lora is None else self.directory.adapters / f"step_{step}"
        return replace_directory(target, partial(self.learner.export, dtype=dtype))

    def _stall(self) -> str | None:
        """Why the watchdog stopped the run, if it did, whatever that led to."""
        if self.watchdog.failure is None:
            return None
        step = self.learner.version
        saved = (self.directory.checkpoints / f"step_{step}").is_dir()
        return f"{self.watchdog.failure}." + (f" There is a checkpoint of step {step}." if saved else "")

    def _stopped_by_signals(self, stop: asyncio.Event) -> AbstractContextManager[None]:
        """The first Ctrl-C or SIGTERM stops the run with a checkpoint; the second ends the process without one."""

        def request_stop(_: int) -> None:
            self.monitor.note(
                "stopping: the current work ends first, then a checkpoint is written; a second signal ends at once"
            )
            stop.set()

        def end() -> None:
            message = "ended by a second signal, without a checkpoint of its last steps"
            self._close_and_kill_children(Outcome("interrupted", self.learner.version, message))

        return on_stopping_signals(request_stop, say=self.monitor.note, end=end)

    def _end_the_process(self, message: str) -> None:
        """Nothing else has helped: code that cannot be interrupted. The run can be resumed from its last checkpoint."""
        self._close_and_kill_children(Outcome("failed", self.learner.version, message))
        os._exit(1)

    def _close_and_kill_children(self, outcome: Outcome) -> None:
        """What is left to do before the process is ended from outside its event loop."""
        self.monitor.ended(replace(outcome, next_command=self._resume_command))
        for child in active_children():  # a process that hangs does not notice that its parent has ended
            child.kill()

    @property
    def _resume_command(self) -> str:
        return f"{self.command} {self.directory.config} --resume"
