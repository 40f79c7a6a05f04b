"""Checkpoints that cannot be trusted, or that are not written: what a crash would cost."""

from __future__ import annotations

from collections.abc import Iterator

from whet.rl.doctor.finding import Change, Finding
from whet.rl.doctor.record import RunRecord

NAME = "checkpoints"
MISSED = 2
"""Intervals without a checkpoint before something is said: one is being written."""


def check(run: RunRecord) -> Iterator[Finding]:
    life = run.life
    if life.checkpoints is None:
        return
    keep = int(run.setting("checkpointing.keep_n_checkpoints", 10))
    if life.faults:
        others = [step for step in life.checkpoints if all(f"step_{step}:" not in fault for fault in life.faults)]
        back = f"a resumed run goes on from step {max(others)}" if others else "no other is there to resume from"
        changes = [
            Change("remove the damaged directory; look at the disk, which gave back something else than was written")
        ]
        if keep == 1:
            changes.append(run.change("checkpointing.keep_n_checkpoints", 3, "another is then there to resume from"))
        yield Finding(NAME, "error", "a checkpoint is damaged", [*life.faults, back], changes)
    every = int(run.setting("checkpointing.save_every_n_steps", 50))
    newest = max(life.checkpoints, default=0)
    if run.steps - newest >= MISSED * every and life.state in ("running", "failed"):
        yield Finding(
            NAME,
            "error",
            "no checkpoint is written",
            [f"step {run.steps} is done, the newest checkpoint is of step {newest}, one is due every {every} steps"],
            [Change("make room on the disk of the run directory; a crash would cost all steps since")],
        )
