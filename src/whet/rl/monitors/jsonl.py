"""`metrics.jsonl` and `evals.jsonl`: the numbers of a run, for programs.

    metrics.jsonl   {"step": 7, "groups/...": ..., "reward/mean": ...}      one line a step, names sorted
    evals.jsonl     {"step": 0, "moment": "before", "version": 0, "environment": "reverse-text",
                     "sampling": "temperature 1", "reward": ..., "metrics": {...}, "rollouts": 256, "errors": 0,
                     "pass@k": {"1": ..., "2": ..., "4": ...}, "tasks": {"0": 0.25, ...}}   one line a score

`tasks` are mean rewards by example_id; `error_examples`, where rollouts failed, has a sentence for each class of error;
of an `EnvGroup`, `members` has the same numbers for each member.

These files are part of the run's record, not a view of it: an error here (no disk left) stops the run. A number that
is not finite is written as null.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from whet.records.directory import EVALS
from whet.rl.monitors.protocol import EvalReport, Monitor, StepReport
from whet.rollouts.totals import EvalScore
from whet.system.files import LineFile, read_lines


class JsonlMonitor(Monitor):
    """Appends to the metrics file at `path` and to `evals.jsonl` next to it; lines are on disk when a call returns."""

    def __init__(self, path: Path) -> None:
        self._metrics = LineFile(path)
        self._evals = LineFile(path.with_name(EVALS))

    def truncate_after(self, step: int) -> None:
        """Forget what a run resumed from `step` will do again: later steps, and the evaluations it repeats.

        What was measured before training is repeated when there is no step to resume from, the evaluation after it
        always.
        """
        self._metrics.keep(lambda row: 0 < step >= row["step"])
        self._evals.keep(lambda row: 0 < step >= row["step"] and row["moment"] != "after")

    def step(self, report: StepReport) -> None:
        self._metrics.append([{"step": report.step, **dict(sorted(report.metrics.items()))}])

    def evaluation(self, report: EvalReport) -> None:
        self._evals.append(evaluation_rows(report))


def read_evaluations(path: Path) -> list[EvalReport]:
    """What an `evals.jsonl` holds, in the order written, without rollout rows; empty where there is none."""
    reports: dict[tuple[str, int, int], EvalReport] = {}
    for row in read_lines(path) if path.exists() else ():
        key = (row["moment"], row["step"], row["version"])
        scores = reports.setdefault(key, EvalReport(*key, [])).scores
        scores.append(_score(row))
    return list(reports.values())


def _score(row: dict[str, Any]) -> EvalScore:
    return EvalScore(
        row["environment"],
        row["sampling"],
        math.nan if row["reward"] is None else row["reward"],
        row["metrics"],
        row["rollouts"],
        row["errors"],
        pass_at_k=row.get("pass@k", {}),
        by_task=row.get("tasks", {}),
        error_examples=row.get("error_examples", {}),
        members=[_score({**row, "members": (), **member}) for member in row.get("members", ())],
    )


def evaluation_rows(report: EvalReport) -> list[dict[str, Any]]:
    """The lines of `evals.jsonl` for one evaluation."""
    return [
        {
            "step": report.step,
            "moment": report.moment,
            "version": report.version,
            "sampling": score.sampling,
            **_numbers(score),
            **({"members": [_numbers(member) for member in score.members]} if score.members else {}),
        }
        for score in report.scores
    ]


def _numbers(score: EvalScore) -> dict[str, Any]:
    return {
        "environment": score.environment,
        "reward": score.reward,
        "metrics": dict(sorted(score.metrics.items())),
        "rollouts": score.rollouts,
        "errors": score.errors,
        **({"error_examples": score.error_examples} if score.error_examples else {}),
        **({"pass@k": score.pass_at_k} if score.pass_at_k else {}),
        "tasks": score.by_task,
    }
