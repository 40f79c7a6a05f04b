"""The process and its resources: how the run ended, checkpoints, failing rollouts, and what makes a step slow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from whet.rl.doctor.finding import Advice, DoctorFinding, Severity
from whet.rl.doctor.record import MIN_STEPS, RunRecord

OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|MemoryError|for its memory", re.I
)
"""What torch, Python, the kernel and the learner's process say when there was no memory left."""
SILENT_SECONDS, STEPS_SILENT = 60.0, 10.0
"""A heartbeat is due every 2 s, except while one thing is computed: ten mean steps, and a minute at least."""


def ended(run: RunRecord) -> Iterator[DoctorFinding]:
    """The run ended before it was done: killed, out of memory, failed; or it is stalled, or silent."""
    life = run.life
    seconds = run.series("time/step").last()
    where = f"the last step on record is {run.steps} of {run.setting('max_steps')}"
    if life.state == "died":
        yield DoctorFinding(
            "killed",
            "error",
            "the run's process died without a word: killed, most often for its memory",
            [
                f"its heartbeat stopped {life.silent_seconds:.0f} s ago, and no process holds the run",
                where,
            ],
            [
                Advice("continue it with --resume; `dmesg | grep -i kill` says whether it was memory"),
                *_less_memory(run),
            ],
        )
    elif life.state == "failed" and OUT_OF_MEMORY.search(life.last_error or ""):
        yield DoctorFinding(
            "out-of-memory",
            "error",
            "the run ran out of memory",
            [f"its last error: {life.last_error}", where],
            [*_less_memory(run), Advice("then continue it with --resume")],
        )
    elif life.state == "failed":
        yield DoctorFinding(
            "failed",
            "error",
            "the run failed",
            [f"its last error: {life.last_error}", where],
            [Advice("mend what the error names, then continue the run with --resume")],
        )
    elif life.state == "running" and life.stalled:
        yield DoctorFinding(
            "stalled",
            "warning",
            "the run is stalled",
            [*life.stalled, where],
            [Advice("mend what keeps it waiting; the run replaces it or stops with a checkpoint at its deadline")],
        )
    elif life.state == "running" and life.silent_seconds > _patience(seconds.mean if len(seconds) else 0.0):
        yield DoctorFinding(
            "silent",
            "warning",
            "nothing has been heard of the run",
            [f"its last heartbeat was {life.silent_seconds:.0f} s ago", where],
            [Advice("something keeps its process from running: a reward function or a tool that does not come back?")],
        )


def _patience(step: float) -> float:
    return max(SILENT_SECONDS, STEPS_SILENT * step)


def _less_memory(run: RunRecord) -> Iterator[Advice]:
    tokens = int(run.setting("learner.micro_batch_tokens", 2048))
    yield run.change("learner.micro_batch_tokens", max(1, tokens // 2), "fewer tokens are computed at once")
    if not run.setting("learner.activation_checkpointing", False):
        yield run.change("learner.activation_checkpointing", True, "less is kept for the gradient")
    rollouts, size = int(run.setting("max_concurrent", 512)), int(run.setting("rollouts_per_example", 8))
    if rollouts > size:
        yield run.change("max_concurrent", max(size, rollouts // 2), "fewer rollouts hold a cache at once")


CHECKPOINTS = "checkpoints"
MISSED_INTERVALS = 2
"""Intervals without a checkpoint before it is reported: one is being written."""


def checkpoints(run: RunRecord) -> Iterator[DoctorFinding]:
    """Checkpoints that cannot be trusted, or that are not written: what a crash would cost."""
    life = run.life
    if life.checkpoints is None:
        return
    keep = int(run.setting("checkpointing.keep_n_checkpoints", 10))
    if life.faults:
        others = [step for step in life.checkpoints if all(f"step_{step}:" not in fault for fault in life.faults)]
        back = f"a resumed run goes on from step {max(others)}" if others else "no other is there to resume from"
        changes = [
            Advice("remove the damaged directory; look at the disk, which gave back something else than was written")
        ]
        if keep == 1:
            changes.append(run.change("checkpointing.keep_n_checkpoints", 3, "another is then there to resume from"))
        yield DoctorFinding(CHECKPOINTS, "error", "a checkpoint is damaged", [*life.faults, back], changes)
    every = int(run.setting("checkpointing.save_every_n_steps", 50))
    newest = max(life.checkpoints, default=0)
    if run.steps - newest >= MISSED_INTERVALS * every and life.state in ("running", "failed"):
        yield DoctorFinding(
            CHECKPOINTS,
            "error",
            "no checkpoint is written",
            [f"step {run.steps} is done, the newest checkpoint is of step {newest}, one is due every {every} steps"],
            [Advice("make room on the disk of the run directory; a crash would cost all steps since")],
        )


ERRORS = "errors"
SOME_ERRORS, MANY_ERRORS = 0.02, 0.3
"""Shares of the rollouts. A group with one error is replaced whole, so 2 % of the rollouts cost 15 % of groups of 8."""
ERROR_HINTS = {
    "timeout": "raise the environment's time limit, or make what is slow faster",
    "ratelimit": "fewer rollouts at once (max_concurrent) keep below the rate that the service allows",
    "tool": "mend the tool, or let it answer what was wrong instead of raising: the model can learn from that",
    "reward": "mend the reward function: it has to score whatever a model writes",
    "sandbox": "fewer sandboxes at once (max_concurrent), or more memory and time for each",
}
"""What to do, by a word of the error's name."""


def errors(run: RunRecord) -> Iterator[DoctorFinding]:
    """Rollouts fail: which error, in which environment, how often."""
    failed = run.series("rollouts/errored_frac").last()
    if not len(failed) or failed.mean < SOME_ERRORS:
        return
    kinds: Counter[tuple[str, str]] = Counter()
    for row in run.errors:
        if failed.steps[0] <= row["step"] <= failed.steps[-1]:
            kinds[str(row["environment"]), str(row["error"])] += int(row["rollouts"])
    evidence = [f"{failed.mean:.1%} of the rollouts of {failed.span} failed, and their groups were sampled again"]
    total = kinds.total()
    for (environment, error), count in kinds.most_common(3):
        evidence.append(f"{count} of {total} in {environment}: {error[:300]}")
    what = "rollouts fail"
    hint = "mend what fails: its groups are sampled again, which costs time and changes which tasks are trained"
    if kinds:
        (environment, error), _ = kinds.most_common(1)[0]
        what = f"rollouts of {environment} fail with {error.partition(':')[0]}"
        names = " ".join(link.partition(":")[0] for link in error.split(" <- ")).casefold()
        hint = next((text for word, text in ERROR_HINTS.items() if word in names), hint)
    yield DoctorFinding(ERRORS, "error" if failed.mean >= MANY_ERRORS else "warning", what, evidence, [Advice(hint)])


SLOW = "slow"
Cause = tuple[Severity, str, str, list[Advice]]
"""How bad, what it is, the figures, and what to change."""
WAITING_SHARE = 0.3
"""Share of a step that a single rollout's scoring, or its environment's turns, take: no step is faster than that."""
HANDOVER = 0.2
"""Share of a step spent on handing weights over; a few per cent is usual."""
LEARNING = 0.85
"""Share of a synchronous step spent learning; a quarter to a half is usual."""
TAIL = 0.8
"""Share of a synchronous step spent sampling, from which rollouts much longer than most keep the others waiting."""
LONGEST = 4.0
"""Longest over mean sequence that makes such a tail."""
OVERLAP = 0.8
"""perf/overlap of asynchronous training below which both sides wait; docs/training.md asks for 0.9."""
IDLE = 0.3
"""Share of an asynchronous step in which nothing could be sampled."""


def slow(run: RunRecord) -> Iterator[DoctorFinding]:
    """What makes steps slow: scoring, environments, weights, or sampling and learning that wait for each other."""
    step = run.series("time/step").last()
    if len(step) < MIN_STEPS or step.mean <= 0 or not len(run.series("time/wait_batch")):
        return
    causes = [*_environments(run, step.mean), *_handover(run, step.mean)]
    causes += _asynchronous(run, step.mean) if run.asynchronous else _synchronous(run, step.mean)
    took = f"a step takes {step.mean:.2f} s in {step.span}"
    for severity, what, why, changes in causes[:2]:
        yield DoctorFinding(SLOW, severity, f"slow: {what}", [took, why], changes)


def _mean_of(run: RunRecord, metric: str) -> float:
    found = run.series(metric).last()
    return found.mean if len(found) else 0.0


def _environments(run: RunRecord, step: float) -> Iterator[Cause]:
    for name in run.environments:
        scored, answered = _mean_of(run, f"time/{name}/score"), _mean_of(run, f"time/{name}/environment")
        sampled = _mean_of(run, f"time/{name}/model")
        figures = f"a rollout of {name} takes {sampled:.2f} s of sampling, {answered:.2f} s of its environment and "
        figures += f"{scored:.2f} s of scoring on average"
        if scored >= WAITING_SHARE * step:
            names = [key.split("/", 2)[2] for key in run.data.metrics[-1] if key.startswith(f"reward/{name}/")]
            functions = ", ".join(function for function in names if function not in ("mean", "num_turns"))
            yield (
                "warning",
                f"scoring of {name}",
                figures,
                [
                    Advice(f"make its reward functions faster ({functions}), or asynchronous where they wait"),
                    *_ahead(run),
                ],
            )
        if answered >= WAITING_SHARE * step:
            yield (
                "warning",
                f"the environment of {name}",
                figures,
                [Advice("make its tools or responses faster, or asynchronous where they wait"), *_ahead(run)],
            )


def _ahead(run: RunRecord) -> list[Advice]:
    if run.asynchronous:
        return []
    return [run.change("max_async_level", 1, "the learner and other rollouts then go on meanwhile")]


def _handover(run: RunRecord, step: float) -> Iterator[Cause]:
    seconds = _mean_of(run, "time/weight_sync")
    if seconds >= HANDOVER * step:
        batch = int(run.setting("batch_size", 128))
        yield (
            "warning",
            "handing weights to the sampler",
            f"time/weight_sync {seconds:.2f} s, {seconds / step:.0%} of a step",
            [run.change("batch_size", 2 * batch, "fewer and larger steps hand over less often")],
        )


def _synchronous(run: RunRecord, step: float) -> Iterator[Cause]:
    learning, sampling = _mean_of(run, "time/train"), _mean_of(run, "time/wait_batch")
    if learning >= LEARNING * step:
        changes = []
        if run.setting("learner.activation_checkpointing", False):
            changes.append(run.change("learner.activation_checkpointing", False, "each layer is then computed once"))
        tokens = int(run.setting("learner.micro_batch_tokens", 2048))
        changes.append(run.change("learner.micro_batch_tokens", 4 * tokens, "fewer and larger products"))
        yield "info", "learning", f"time/train {learning:.2f} s, {learning / step:.0%} of a step", changes
    longest, mean = _mean_of(run, "seq_len/max"), _mean_of(run, "seq_len/mean")
    if sampling >= TAIL * step and longest >= LONGEST * mean:
        yield (
            "info",
            "the longest rollouts",
            f"time/wait_batch {sampling:.2f} s, {sampling / step:.0%} of a step; the longest sequence has "
            f"{longest:.0f} tokens, the mean one {mean:.0f}",
            [run.change("max_async_level", 1, "no step then waits for the longest rollout of its batch")],
        )


def _asynchronous(run: RunRecord, step: float) -> Iterator[Cause]:
    waits, learning, overlap = (_mean_of(run, name) for name in ("time/wait_policy", "time/train", "perf/overlap"))
    if waits >= IDLE * step:
        level = int(run.setting("max_async_level", 1))
        yield (
            "info",
            "sampling waits for learning",
            f"in {waits:.2f} s of a step nothing could be sampled before new weights came; time/train {learning:.2f} s",
            [
                run.change("max_async_level", level + 1, "sampling may then go further ahead"),
                run.change(
                    "learner.micro_batch_tokens",
                    4 * int(run.setting("learner.micro_batch_tokens", 2048)),
                    "fewer and larger products",
                ),
            ],
        )
    elif overlap < OVERLAP:
        factor = float(run.setting("oversampling_factor", 1.0))
        yield (
            "info",
            "sampling and learning take turns",
            f"perf/overlap {overlap:.2f}; time/wait_batch {_mean_of(run, 'time/wait_batch'):.2f} s",
            [run.change("oversampling_factor", factor + 0.5, "more groups in flight hide the slow ones")],
        )
