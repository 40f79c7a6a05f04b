"""Archives or removes steps that a resume discards: nothing is deleted because an older step was chosen.

set_aside/after_step_20/          (then after_step_20-2, ...)
    metrics.jsonl, evals.jsonl, ledger.jsonl, errors.jsonl     as they were
    rollouts/step_000021.jsonl, ...
    checkpoints/step_30/, ...
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from whet.runs.directory import free_path

LINE_FILES = ("metrics.jsonl", "evals.jsonl", "ledger.jsonl", "errors.jsonl")
NUMBERED = re.compile(r"(?:eval_)?step_(\d+)")


def archive_after(run: Path, step: int, *, records: bool) -> Path | None:
    """Move what is later than `step` out of the way; where it is now, or None where there was nothing.

    Without `records`, only checkpoints: those passed over because they are damaged. With them also rollouts, and the
    growing files are copied before they are cut.
    """
    checkpoints = _later(run / "checkpoints", step)
    rollouts = _later(run / "rollouts", step) if records else []
    if not checkpoints and not rollouts:
        return None
    target = free_path(run / "set_aside", f"after_step_{step}")
    if records:
        target.mkdir(parents=True)
        for name in LINE_FILES:
            if (run / name).is_file():
                shutil.copyfile(run / name, target / name)
    # Checkpoints last and newest first: killed half-way, the newest that is left is still one that records agree with.
    for path in [*rollouts, *reversed(checkpoints)]:
        archived = target / path.parent.name / path.name
        archived.parent.mkdir(parents=True, exist_ok=True)
        os.rename(path, archived)
    return target


def discard_after(rollouts: Path, step: int) -> None:
    """Remove what a run resumed from `step` writes again: later steps and evaluations, and the one after training."""
    for path in (*_later(rollouts, step), rollouts / "eval_after.jsonl"):
        path.unlink(missing_ok=True)


def _later(directory: Path, step: int) -> list[Path]:
    """What is named after a later step, in order."""
    paths = directory.iterdir() if directory.is_dir() else ()
    found = [(int(match[1]), path) for path in paths if (match := NUMBERED.fullmatch(path.stem))]
    return [path for number, path in sorted(found) if number > step]
