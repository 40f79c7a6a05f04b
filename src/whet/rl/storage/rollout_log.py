"""Every trained and every evaluated rollout, on disk: messages, sampled tokens, rewards.

    rollouts/step_000001.jsonl     the rollouts of step 1, whole groups one after the other
    rollouts/eval_before.jsonl     held-out tasks before training; also eval_after, eval_step_000050

A file is whole or absent: it is written under another name and renamed. `rollouts/token_rows.py` describes a row.
Evaluated rollouts also have the way in which they were sampled (`sampling`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from whet.rl.monitors.protocol import EvalReport
from whet.rollouts.row_log import write_rows


def step_path(directory: Path, step: int) -> Path:
    return directory / f"step_{step:06}.jsonl"


def evaluation_path(directory: Path, moment: str, step: int) -> Path:
    return directory / (f"eval_step_{step:06}.jsonl" if moment == "during" else f"eval_{moment}.jsonl")


def write_step(directory: Path, step: int, rows: Iterable[Mapping[str, Any]]) -> Path:
    """The rollouts of one trained step."""
    return write_rows(step_path(directory, step), rows)


def write_evaluation(directory: Path, report: EvalReport) -> Path:
    """All rollouts of one evaluation, each with the way in which it was sampled."""
    rows = ({**row, "sampling": score.sampling} for score in report.scores for row in score.rows)
    return write_rows(evaluation_path(directory, report.moment, report.step), rows)
