"""The run ended before it was done: killed without a word, out of memory, failed; or it is stalled, or silent."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whet.rl.doctor.finding import Change, Finding
from whet.rl.doctor.record import RunRecord

MEMORY = re.compile(r"out of memory|can't allocate memory|cannot allocate memory|MemoryError|for its memory", re.I)
"""What torch, Python, the kernel and the learner's process say when there was no memory left."""
SILENT_SECONDS, STEPS_SILENT = 60.0, 10.0
"""A heartbeat is due every 2 s, except while one thing is computed: ten mean steps, and a minute at least."""


def check(run: RunRecord) -> Iterator[Finding]:
    life = run.life
    seconds = run.series("time/step").last()
    where = f"the last step on record is {run.steps} of {run.setting('max_steps')}"
    if life.state == "died":
        yield Finding(
            "killed",
            "error",
            "the run's process died without a word: killed, most often for its memory",
            [
                f"its heartbeat stopped {life.silent_seconds:.0f} s ago, and no process holds the run",
                where,
            ],
            [
                Change("continue it with --resume; `dmesg | grep -i kill` says whether it was memory"),
                *_less_memory(run),
            ],
        )
    elif life.state == "failed" and MEMORY.search(life.last_error or ""):
        yield Finding(
            "out-of-memory",
            "error",
            "the run ran out of memory",
            [f"its last error: {life.last_error}", where],
            [*_less_memory(run), Change("then continue it with --resume")],
        )
    elif life.state == "failed":
        yield Finding(
            "failed",
            "error",
            "the run failed",
            [f"its last error: {life.last_error}", where],
            [Change("mend what the error names, then continue the run with --resume")],
        )
    elif life.state == "running" and life.stalled:
        yield Finding(
            "stalled",
            "warning",
            "the run is stalled",
            [*life.stalled, where],
            [Change("mend what keeps it waiting; the run replaces it or stops with a checkpoint at its deadline")],
        )
    elif life.state == "running" and life.silent_seconds > _patience(seconds.mean if len(seconds) else 0.0):
        yield Finding(
            "silent",
            "warning",
            "nothing has been heard of the run",
            [f"its last heartbeat was {life.silent_seconds:.0f} s ago", where],
            [Change("something keeps its process from running: a reward function or a tool that does not come back?")],
        )


def _patience(step: float) -> float:
    return max(SILENT_SECONDS, STEPS_SILENT * step)


def _less_memory(run: RunRecord) -> Iterator[Change]:
    tokens = int(run.setting("learner.micro_batch_tokens", 2048))
    yield run.change("learner.micro_batch_tokens", max(1, tokens // 2), "fewer tokens are computed at once")
    if not run.setting("learner.activation_checkpointing", False):
        yield run.change("learner.activation_checkpointing", True, "less is kept for the gradient")
    rollouts, size = int(run.setting("max_concurrent", 512)), int(run.setting("rollouts_per_example", 8))
    if rollouts > size:
        yield run.change("max_concurrent", max(size, rollouts // 2), "fewer rollouts hold a cache at once")
