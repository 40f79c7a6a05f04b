"""A sweep at work: trials as processes, so many at once, each an ordinary run that is resumed from rung to rung.

    next trial ─▶ sweep.json ─▶ `whet train run ... --budget.max_rollouts N [--resume]` ─▶ its score ─▶ sweep.json
                                `whet train sft ... --budget.max_rows N [--resume]`

Killed at any point, `--resume` continues: a trial that was running is resumed from its checkpoint, one whose process
came to its end meanwhile is only read. The processes end with the sweep.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from whet.errors import ConfigError, RunError
from whet.records.directory import RUN_CONFIG
from whet.records.lock import is_locked
from whet.rl.config import RunConfig
from whet.rl.sft.config import VALIDATION_LOSS, SftConfig
from whet.rl.stored.stored_run import StoredTraining, open_run
from whet.rl.supervision.ending import EarlyStopConfig, check_metric, value_of
from whet.rl.sweep.config import SweepConfig, imitates, overrides, trial_config
from whet.rl.sweep.search import SweepTrial, promotable, proposal
from whet.rl.sweep.state import SweepDirectory
from whet.system.children import PARENT_GRACE_S, PARENT_PIPE, how_it_ended, kill_group, start
from whet.system.redaction import redacted

POLL_S = 0.1
STOPPING_S = 600.0
"""Seconds for trials to write a checkpoint where the sweep is interrupted."""
MOST_CHECKED = 200
"""Combinations of a grid whose config is checked before the first one is trained."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    run: Path
    values: dict[str, Any]  # by key that is varied
    score: float | None
    rollouts: int  # or rows
    steps: int
    state: Literal["finished", "stopped early", "paused", "failed"]
    note: str


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep found, the best trial first."""

    directory: Path
    state: Literal["finished", "budget used up", "interrupted"]
    trials: list[TrialResult]
    counted: Literal["rollouts", "rows"]
    rollouts: int
    whole: int  # rollouts that all trials would have had without a budget and without early stops


class Sweep:
    """One sweep; `say` gets a line for each event."""

    def __init__(self, config: SweepConfig, base: Path, say: Callable[[str], None]) -> None:
        """Check every combination. Raises `ConfigError`."""
        assert config.name is not None
        self.config, self.base, self._say = config, base, say
        self._imitates = imitates(base)
        first = trial_config(base, self._first_values(), config.metric)
        for values in itertools.islice(self._grid(), MOST_CHECKED):
            self._check(trial_config(base, values, config.metric))
        self._by_loss = config.metric == VALIDATION_LOSS
        if self._by_loss and not self._imitates:
            raise ConfigError(
                f"{base}: --metric {VALIDATION_LOSS} is of whet train sft, this config of whet train run."
            )
        evaluated = [] if self._by_loss else [one.label for one in first.eval.env or getattr(first, "env", ())]
        if config.environment not in (None, *evaluated):
            there = ", ".join(evaluated) or "none"
            raise ConfigError(f"{base}: no environment '{config.environment}' is evaluated; there are {there}.")
        self._seed = first.seed
        self._threads = max(1, first.deployment.torch_threads() // config.parallel) if config.parallel > 1 else None
        self.runs = first.runs_directory
        self.directory = SweepDirectory(self.runs / config.name)
        plan = config.model_dump(mode="json", exclude={"name", "parallel", "rollouts", "trials"})
        self._plan = redacted({**plan, "config": first.model_dump(mode="json", exclude_none=True)})
        self._active: dict[int, subprocess.Popen[bytes]] = {}

    def run(self, *, resume: bool) -> SweepResult:
        """Train until nothing is left to try. Raises `RunError` for a folder that cannot be used."""
        self.directory.open(self._plan, resume=resume)
        try:
            with _ends_with_this() as self._pipe, _sigterm_as_ctrl_c():
                try:
                    state: Any = self._work()
                except KeyboardInterrupt:
                    state = "interrupted"
                finally:
                    self._stop()
            return self._result(state)
        finally:
            self.directory.close()

    # What comes next

    def _work(self) -> str:
        for trial in self.directory.trials:
            if trial.failed:  # tried again
                trial.failed, trial.running, trial.note = False, True, ""
        left = [trial for trial in self.directory.trials if trial.running]
        state = "finished"
        while True:
            while len(self._active) < self.config.parallel and state == "finished":
                following = left.pop(0) if left else self._next()
                if following is None:
                    break
                if not following.running and not self._affords(following):
                    state = "budget used up"
                    break
                self._launch(following)
            if not self._active:
                return state
            time.sleep(POLL_S)
            for number, process in list(self._active.items()):
                if (code := process.poll()) is not None:
                    del self._active[number]
                    self._record(self.directory.trials[number], code)

    def _next(self) -> SweepTrial | None:
        trials = self.directory.trials
        if self.config.method == "asha" and (ahead := promotable(trials, self.config.reduction)) is not None:
            return ahead
        values = proposal(self.config, self._seed, trials)
        if values is None:
            return None
        run = trial_config(self.base, values, self.config.metric)
        return SweepTrial(len(trials), values, self.config.targets(self._check(run)), run.batch_size)

    def _affords(self, trial: SweepTrial) -> bool:
        most = self.config.rollouts
        begun = sum(one.rollouts + (one.cost if one.running else 0) for one in self.directory.trials)
        return most is None or begun + trial.cost <= most

    def _check(self, run: RunConfig | SftConfig) -> int:
        """Its steps, where they are enough."""
        assert run.max_steps is not None, "checked by trial_config"
        least = self.config.reduction ** (self.config.rungs - 1)
        if self.config.method == "asha" and run.max_steps < least:
            raise ConfigError(
                f"{self.base}: max_steps = {run.max_steps} is too few for {self.config.rungs} rungs, each with "
                f"{self.config.reduction} times the steps of the one before; give at least {least}, or fewer rungs."
            )
        return run.max_steps

    def _first_values(self) -> dict[str, Any]:
        vary = self.config.vary.items()
        return {key: values[0] if isinstance(values, tuple) else values.low for key, values in vary}

    def _grid(self) -> Iterator[dict[str, Any]]:
        """All that will be tried, where that is known before any score is."""
        if self.config.method == "tpe" or self.config.has_ranges:
            return
        done: list[SweepTrial] = []
        while (values := proposal(self.config, 0, done)) is not None:
            done.append(SweepTrial(len(done), values, [1], 1))
            yield values

    # Processes

    def path_of(self, trial: SweepTrial) -> Path:
        return self.runs / f"{self.config.name}-{trial.number}"

    def _launch(self, trial: SweepTrial) -> None:
        """Write down that it runs, then start it; one that has come to its end already is read instead."""
        path, trials = self.path_of(trial), self.directory.trials
        if trial.number == len(trials):
            if path.exists():
                raise RunError(f"{path} is there already, and no trial of this sweep. Choose another --name.")
            trials.append(trial)
        trial.running = True
        self.directory.save()
        self._wait_for_lock(path)
        begun = (path / RUN_CONFIG).is_file()
        if begun and self._has_reached(open_run(path), self._target(trial)):
            self._record(trial, 0)
            return
        if not begun:  # killed before it was a run
            shutil.rmtree(path, ignore_errors=True)
        words = [str(self.base), *overrides(trial.values), f"--name={path.name}", f"--runs_directory={self.runs}"]
        most = "max_rows" if self._imitates else "max_rollouts"
        words += [f"--budget.{most}={self._target(trial) * trial.batch_size}"]
        words += [f"--deployment.threads={self._threads}"] if self._threads is not None else []
        words += ["--resume"] if begun else []
        shown = {key: trial.values[key] for key in self.config.varied}
        self._say(f"trial {trial.number} ({values_text(shown)}): to step {self._target(trial)} of {trial.targets[-1]}")
        with self.directory.log_of(trial).open("ab") as log:
            self._active[trial.number] = start(
                [sys.executable, "-m", "whet.cli.main", "train", "sft" if self._imitates else "run", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(self._pipe,),
                env={**os.environ, PARENT_PIPE: str(self._pipe)},
            )

    def _target(self, trial: SweepTrial) -> int:
        return trial.targets[len(trial.scores)]

    def _wait_for_lock(self, path: Path) -> None:
        """The process of a sweep that was killed ends with it, after a checkpoint."""
        deadline = time.monotonic() + 2 * PARENT_GRACE_S
        while is_locked(path):
            if time.monotonic() > deadline:
                raise RunError(f"{path} is in use by another process. Stop it (whet train stop {path}), then --resume.")
            time.sleep(POLL_S)

    def _stop(self) -> None:
        """End what runs, after its checkpoint; a second signal ends it at once."""
        try:
            for process in self._active.values():
                process.terminate()
            deadline = time.monotonic() + STOPPING_S
            for process in self._active.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for process in self._active.values():
                kill_group(process.pid)
            self._active.clear()

    # Scores

    def _has_reached(self, run: StoredTraining, target: int) -> bool:
        if run.state != "finished" or self._by_loss:
            return run.state == "finished" and run.step == target
        reports = run.evaluations()
        return bool(reports) and (reports[-1].moment, reports[-1].step) == ("after", target)

    def _record(self, trial: SweepTrial, code: int) -> None:
        """What its process left."""
        path = self.path_of(trial)
        run = open_run(path) if (path / RUN_CONFIG).is_file() else None
        if run is None or code != 0:
            trial.failed, trial.running, trial.note = True, False, self._reason(trial, run, code)
        else:
            target, newest = self._target(trial), self._score(run)
            trial.running, trial.steps = False, run.step
            trial.scores.append(None if math.isnan(newest) else newest)
            if math.isnan(newest):
                trial.note = "it has no score: no evaluation, or every rollout of it failed"
            elif run.step < target:
                trial.note = f"ended by itself after step {run.step}"
        self.directory.save()
        score = self._shown(trial)
        said = trial.note if score is None or trial.failed else f"{score:.3f} after step {trial.steps}"
        self._say(f"trial {trial.number}: {said}")

    def _score(self, run: StoredTraining) -> float:
        """The higher, the better: of the newest evaluation, or minus the newest validation loss; NaN without one.

        Raises `ConfigError` for a metric that is not measured.
        """
        if self._by_loss:
            return -float(
                next((row[VALIDATION_LOSS] for row in reversed(run.metrics()) if VALIDATION_LOSS in row), math.nan)
            )
        watched = EarlyStopConfig(metric=self.config.metric, environment=self.config.environment)
        reports = run.evaluations()
        if not reports:
            return math.nan
        try:
            check_metric(watched, reports[-1])
        except ConfigError as error:
            raise ConfigError(str(error).replace("early_stop.metric", "--metric")) from None
        return value_of(watched, reports[-1])

    def _shown(self, trial: SweepTrial) -> float | None:
        """The score as its metric has it."""
        return -trial.score if trial.score is not None and self._by_loss else trial.score

    def _reason(self, trial: SweepTrial, run: StoredTraining | None, code: int) -> str:
        if code < 0:
            return f"its process {how_it_ended(code)}"
        if run is not None and run.state in ("interrupted", "failed"):
            return str(run.status.get("last_error") or f"stopped after step {run.step}")
        lines = self.directory.log_of(trial).read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return errors[-1] if errors else f"its process ended; {self.directory.log_of(trial)} has what it printed"

    def _result(self, state: Any) -> SweepResult:
        trials = sorted(self.directory.trials, key=_best_first)
        whole = sum(trial.targets[-1] * trial.batch_size for trial in trials)
        left = self.config.most_trials - len(trials)
        if trials:
            whole += left * trials[0].targets[-1] * trials[0].batch_size
        results = [
            TrialResult(
                run=self.path_of(trial),
                values={key: trial.values[key] for key in self.config.varied},
                score=self._shown(trial),
                rollouts=trial.rollouts,
                steps=trial.steps,
                state=_state_of(trial, state),
                note=trial.note,
            )
            for trial in trials
        ]
        counted: Literal["rollouts", "rows"] = "rows" if self._imitates else "rollouts"
        return SweepResult(self.directory.path, state, results, counted, sum(trial.rollouts for trial in trials), whole)


def _best_first(trial: SweepTrial) -> tuple[int, float, int]:
    """By rung, then by score."""
    return -len(trial.scores), -math.inf if trial.score is None else -trial.score, trial.number


def _state_of(trial: SweepTrial, state: str) -> Any:
    if trial.failed:
        return "failed"
    if trial.is_whole or (trial.note and not trial.running):
        return "finished"
    return "paused" if trial.running or state != "finished" else "stopped early"


@contextmanager
def _ends_with_this() -> Iterator[int]:
    """The reading end of a pipe that closes with this process, for `end_with_parent`."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        for one in (reading, writing):
            with suppress(OSError):
                os.close(one)


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def values_text(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items())
