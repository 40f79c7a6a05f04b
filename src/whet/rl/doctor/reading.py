"""A `RunRecord` from the files of a run directory. Nothing is written, and nothing is held but for a moment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from whet.rl.doctor.record import Life, Row, RunRecord
from whet.rl.report.data import RunData
from whet.rl.storage.checkpoints import checkpoints_in, fault_of
from whet.rl.storage.rollout_log import step_path
from whet.rl.storage.run_directory import RunDirectory
from whet.rl.stored.stored_run import StoredTraining, open_run
from whet.system.files import read_lines

MOST_ROLLOUTS = 1024
"""Rollouts of a step that are looked at: enough for any share, and no more memory than that of a step."""


def read_record(path: Path, *, verify: bool = True, ends: int | None = None) -> RunRecord:
    """What a run wrote so far, by its directory or its name. Raises `RunError` for what is no run or cannot be read.

    `verify` reads the newest checkpoint whole, to compare it with its hashes. `ends` are bytes: of longer metrics the
    first and the last steps in so many are read, as rules need them.
    """
    run = open_run(path)
    data = RunData.of(run, ends)
    directory = RunDirectory(run.directory)
    steps = [int(row["step"]) for row in data.metrics]
    return RunRecord(
        data=data,
        life=_life(run, verify=verify),
        errors=list(read_lines(directory.errors)) if directory.errors.is_file() else (),
        rollouts=_rollouts(directory, steps[-1:]),
        first_rollouts=_rollouts(directory, steps[:1]),
    )


def _rollouts(directory: RunDirectory, steps: list[int]) -> Sequence[Row]:
    """Rows of the first step of the list whose rollouts are there, without their tokens."""
    for step in steps:
        path = step_path(directory.rollouts, step)
        if path.is_file():
            rows = islice(read_lines(path), MOST_ROLLOUTS)
            return [{key: value for key, value in row.items() if key != "turns"} for row in rows]
    return ()


def _life(run: StoredTraining, *, verify: bool) -> Life:
    directory = RunDirectory(run.directory)
    checkpoints = checkpoints_in(directory.checkpoints)
    faults = [f"{one.path.name}: {fault}" for one in checkpoints[:1] if verify and (fault := fault_of(one.path))]
    return Life(
        state=run.state,
        silent_seconds=_age(run.status.get("heartbeat")),
        last_error=run.status.get("last_error"),
        stalled=run.status.get("stalled") or (),
        faults=faults,
        checkpoints=[one.step for one in reversed(checkpoints)],
    )


def _age(heartbeat: Any) -> float:
    """Seconds since a heartbeat; 0 where there is none."""
    try:
        return max(0.0, time.time() - datetime.fromisoformat(heartbeat).timestamp())
    except (TypeError, ValueError):
        return 0.0
