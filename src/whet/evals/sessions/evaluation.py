"""One evaluation of a session: its tasks, the rows it has so far, and its directory.

    metadata.json (running) ──▶ rows, as they finish ──▶ rows in the order of tasks ──▶ metadata.json (finished)

Once a rollout's row is written, memory holds two numbers of it, and what the summary counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from whet import __version__
from whet.envs.answers import check_answers
from whet.envs.env_group import held_out_rows, member_names
from whet.envs.environment import Environment
from whet.envs.identity.record import identify
from whet.errors import DatasetError, RunError
from whet.evals.analysis.summary import EvalSummary, SummaryBuilder, sampling_name
from whet.evals.config import EvalConfig
from whet.evals.environment import scored_together
from whet.evals.evaluate import EVAL_SEED
from whet.evals.model import about_length, most_tokens
from whet.evals.observer import PlannedEval
from whet.evals.sessions.resume import (
    IDENTITY,
    NOWHERE,
    STATE,
    TASKS,
    Spots,
    check_continues,
    digest_of_tasks,
    find_rows,
    identity_of,
    results_directory,
)
from whet.records.directory import METADATA, RESULTS, write_metadata
from whet.records.lock import LOCK, DirectoryLock
from whet.rollouts.jobs import Finished, RolloutJob, RolloutRecipe
from whet.rollouts.row_log import RowLog, row_at
from whet.system.redaction import redacted
from whet.types import RolloutOutput

Ended = Literal["finished", "interrupted"]


class Evaluation:
    """A config, its environment and tasks, and what has become of them."""

    def __init__(self, number: int, config: EvalConfig, env: Environment) -> None:
        """Choose the tasks and see what is there already; nothing is written.

        Raises `WhetError` where there is no task, or nothing that could be continued.
        """
        self.number, self.config, self.env = number, config, env
        self.label, self.max_concurrent, self.local = config.environment, config.max_concurrent, config.local
        self.tasks = select_rows(env, config)
        self.example_ids = [row["example_id"] for row in self.tasks]
        self._check_ids()
        self.attempts = config.rollouts_per_example
        self.sampling = config.resolved_sampling(env.sampling_args)
        self.together = scored_together(env, config)
        self.pass_threshold = env.pass_threshold
        self.members = member_names(env)
        self._identity = identity_of(config, env, self.sampling)
        self._tasks_digest = digest_of_tasks(self.tasks)
        self.directory: Path | None = None
        before: dict[str, Any] = {}
        if config.resume is not None:
            self.directory = config.resume
            before = check_continues(self.directory, self._identity, self.tasks, self.attempts)
        elif config.save:
            self.directory = results_directory(config)
        self._date = str(before.get("date") or datetime.now().isoformat(timespec="seconds"))
        self._seconds_before = float(before.get("time") or 0.0)
        self._started: float | None = None
        self._lock: DirectoryLock | None = None
        self._log: RowLog | None = None
        self._spots = Spots.none(len(self.tasks) * self.attempts)
        self._old: set[int] = set()  # rollouts whose failed row of before still stands for them
        self.empty_columns = set(config.state_columns)  # state columns that no rollout so far had a value for
        self._tools: list[Any] | Literal["differ"] | None = None
        self.summary_so_far = SummaryBuilder(
            environment=config.environment,
            model=config.model,
            sampling=sampling_name(self.sampling),
            rollouts_per_example=self.attempts,
            pass_threshold=self.pass_threshold,
            greedy=self.sampling.get("temperature") == 0,
            varied=config.varied,
            members=self.members,
        )
        self.kept = 0
        self.missing = 0
        self.complete = False

    def _check_ids(self) -> None:
        if len(set(self.example_ids)) < len(self.example_ids):
            twice = next(one for one in self.example_ids if self.example_ids.count(one) > 1)
            raise DatasetError(
                f"environment {self.config.environment}: two tasks have the example_id {twice!r}, which is how "
                "rollouts are distinguished. Give each task its own, or none at all."
            )

    @property
    def rollouts(self) -> int:
        return len(self.tasks) * self.attempts

    @property
    def recipe(self) -> RolloutRecipe:
        seed = self.config.resolved_seed
        return RolloutRecipe(
            model=self.config.model,
            sampling_args=self.sampling,
            name=str(self.number),
            seed=None if seed is None else (*EVAL_SEED, seed),
            together=self.together,
            max_retries=self.config.max_retries,
            timeout=self.config.timeout,
            state_columns=self.config.state_columns,
        )

    @property
    def planned(self) -> PlannedEval:
        return PlannedEval(
            environment=self.config.environment,
            model=self.config.model,
            sampling=sampling_name(self.sampling),
            examples=len(self.tasks),
            rollouts_per_example=self.attempts,
            kept=self.kept,
            directory=self.directory,
            pass_threshold=self.pass_threshold,
            varied=self.config.varied,
            members=self.members,
            caution=self._caution,
        )

    @cached_property
    def _caution(self) -> str:
        rollouts = len(self.tasks) * self.attempts - self.kept
        return about_length(self.config, self.sampling, rollouts, "--max-tokens") if rollouts else ""

    @cached_property
    def _environment(self) -> dict[str, Any]:
        return identify(self.config.environment).as_dict()

    @property
    def most_tokens(self) -> int:
        """Tokens of what is missing where no answer ends; 0 where answers have a limit, or that is not known."""
        return most_tokens(self.config, self.sampling, len(self.tasks) * self.attempts - self.kept)

    def open(self) -> None:
        """Take the directory and find what it has; from here on it says that it is running.

        Raises `RunError` where it cannot be written, or another process writes to it.
        """
        if self.directory is not None:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                self._lock = DirectoryLock(self.directory)
                self._write_metadata("running")
            except OSError as error:
                raise RunError(f"{self.directory}: cannot write results here ({error.strerror or error}).") from error
            self._log = RowLog(self.directory)
            self._spots = find_rows(self.directory, self.example_ids, self.attempts, together=self.together)
        again = self._again()
        self._old = {number for number in again if self._spots.offsets[number] != NOWHERE}
        self.kept = self.rollouts - len(again)
        self.missing = len(again)

    def _again(self) -> set[int]:
        """The rollouts to run; of a group that is scored together all, if one is missing or failed."""
        missing = {number for number in range(self.rollouts) if not self._spots.is_done(number)}
        if not self.together:
            return missing
        groups = {number // self.attempts for number in missing}
        return {group * self.attempts + attempt for group in groups for attempt in range(self.attempts)}

    def kept_rows(self) -> Iterator[RolloutOutput]:
        """The rows that are there already and stay, counted for the summary, in the order of tasks."""
        if not self.kept:
            return
        assert self._log is not None
        with self._log.path.open("rb") as file:
            for number, offset in enumerate(self._spots.offsets):
                if offset != NOWHERE and number not in self._old:
                    yield self._count(RolloutOutput(json.loads(row_at(file, offset))))

    def jobs(self) -> Iterator[RolloutJob]:
        """What is still to be run, in the order of tasks."""
        if self._started is None:
            self._started = time.perf_counter()
        again = sorted(self._again())
        if not self.together:
            for number in again:
                task, attempt = divmod(number, self.attempts)
                yield RolloutJob(self.number, task, (attempt,))
            return
        for task in dict.fromkeys(number // self.attempts for number in again):
            yield RolloutJob(self.number, task, tuple(range(self.attempts)))

    def take(self, job: RolloutJob, rollouts: list[Finished]) -> None:
        """Count rollouts and have them saved. Raises `RunError` where rows before could not be."""
        offsets = [0] * len(rollouts) if self._log is None else self._log.append(one.line for one in rollouts)
        for one, offset in zip(rollouts, offsets, strict=True):
            number = job.task * self.attempts + one.index
            self._spots.put(number, offset, one.row.get("error") is not None)
            self._old.discard(number)
            self._count(one.row)
        self.missing -= len(rollouts)

    def _count(self, row: RolloutOutput) -> RolloutOutput:
        self.summary_so_far.add(row)
        self.empty_columns -= {column for column in self.empty_columns if row.get(column) is not None}
        tools = row.get("tool_defs") or None
        if tools is not None and tools != self._tools:
            self._tools = tools if self._tools is None else "differ"
        return row

    @property
    def begun(self) -> bool:
        """Whether there is a directory that can be continued."""
        return self._log is not None

    @property
    def saved(self) -> int:
        """Rollouts that are on the disk."""
        return 0 if self._log is None else self.kept + self._log.saved

    async def end(self, state: Ended) -> EvalSummary:
        """Save everything, say so in the metadata, and let the directory go. What the rows say."""
        seconds = self._seconds()
        try:
            if self._log is not None:
                # In a thread: the rollouts of other evaluations continue meanwhile.
                await asyncio.to_thread(self._settle, state)
                self._write_metadata(state)
        finally:
            self.close()
        self.complete = state == "finished"
        return self.summary_so_far.summary(seconds=seconds, results=self.directory)

    def _settle(self, state: Ended) -> None:
        assert self._log is not None
        self._log.flush()
        with self._log.path.open("rb") as file:
            for number in sorted(self._old):
                self._count(RolloutOutput(json.loads(row_at(file, self._spots.offsets[number]))))
        # What was interrupted stays as it was written: a group that is being run again may have rows of both times.
        if state == "finished":
            self._log.sort(self._spots.known())

    def discard_if_empty(self) -> None:
        """Remove the directory again where this session made it and no rollout is in it; call it after `end`."""
        if (
            self.config.resume is not None
            or self.directory is None
            or self._log is None
            or self._log.path.stat().st_size
        ):
            return
        for name in (RESULTS, METADATA, LOCK):
            (self.directory / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something else is in it
            self.directory.rmdir()
            self.directory.parent.rmdir()
        self._log = None

    def close(self) -> None:
        """Let the directory go, as it is."""
        if self._log is not None:
            self._log.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _seconds(self) -> float:
        return self._seconds_before + (0.0 if self._started is None else time.perf_counter() - self._started)

    def _write_metadata(self, state: Ended | Literal["running"]) -> None:
        assert self.directory is not None
        write_metadata(self.directory, self._metadata(state))

    def _metadata(self, state: str) -> Mapping[str, Any]:
        config, env = self.config, self.env
        fields = {
            STATE: state,
            "env_id": env.env_id,
            "env_args": env.env_args,
            "model": config.model,
            "base_url": config.base_url or "",
            "num_examples": len(self.tasks),
            "rollouts_per_example": self.attempts,
            "sampling_args": self.sampling,
            "seed": config.resolved_seed,
            "shuffle": config.shuffle,
            "date": self._date,
            "time": self._seconds(),
            **self.summary_so_far.averages(),
            "pass_threshold": self.pass_threshold,
            **({"members": self.members} if self.members else {}),
            "version_info": {"whet": __version__},
            "state_columns": list(config.state_columns),
            "tools": self._tools if isinstance(self._tools, list) else None,
            "environment": self._environment,
            "config": config.model_dump(mode="json", exclude={"env_file", "resume"}),
            IDENTITY: self._identity,
            TASKS: self._tasks_digest,
        }
        plain: Mapping[str, Any] = redacted(fields)
        return plain


def select_rows(env: Environment, config: EvalConfig) -> list[dict[str, Any]]:
    """The rows to attempt. One `shuffle` seed gives one order on every machine, and more rows continue fewer.

    Raises `DatasetError` where the environment has no task.
    """
    rows = held_out_rows(env, config.num_examples, config.shuffle)
    if not rows:
        raise DatasetError(f"environment {config.environment}: there is no task to evaluate on")
    check_answers(env, rows, config.environment)
    return rows
