"""What a step waits for, where something else than sampling and learning takes its time, or one of the two waits."""

from __future__ import annotations

from collections.abc import Iterator

from whet.rl.doctor.finding import Change, Finding, Severity
from whet.rl.doctor.record import MIN_STEPS, RunRecord

NAME = "slow"
Cause = tuple[Severity, str, str, list[Change]]
"""How bad, what it is, the figures, and what to change."""
SHARE = 0.3
"""Share of a step that a single rollout's scoring, or its environment's turns, take: no step is faster than that."""
HANDOVER = 0.2
"""Share of a step spent on handing weights over; a few per cent is usual."""
LEARNING = 0.85
"""Share of a synchronous step spent learning; a quarter to a half is usual."""
TAIL = 0.8
"""Share of a synchronous step spent sampling, from which rollouts much longer than most keep everybody waiting."""
LONGEST = 4.0
"""Longest over mean sequence that makes such a tail."""
OVERLAP = 0.8
"""perf/overlap of asynchronous training below which both sides wait; docs/training.md asks for 0.9."""
IDLE = 0.3
"""Share of an asynchronous step in which nothing could be sampled."""


def check(run: RunRecord) -> Iterator[Finding]:
    step = run.series("time/step").last()
    if len(step) < MIN_STEPS or step.mean <= 0 or not len(run.series("time/wait_batch")):
        return
    causes = [*_environments(run, step.mean), *_handover(run, step.mean)]
    causes += _asynchronous(run, step.mean) if run.asynchronous else _synchronous(run, step.mean)
    took = f"a step takes {step.mean:.2f} s in {step.span}"
    for severity, what, why, changes in causes[:2]:
        yield Finding(NAME, severity, f"slow: {what}", [took, why], changes)


def _mean(run: RunRecord, metric: str) -> float:
    found = run.series(metric).last()
    return found.mean if len(found) else 0.0


def _environments(run: RunRecord, step: float) -> Iterator[Cause]:
    for name in run.environments:
        scored, answered = _mean(run, f"time/{name}/score"), _mean(run, f"time/{name}/environment")
        sampled = _mean(run, f"time/{name}/model")
        figures = f"a rollout of {name} takes {sampled:.2f} s of sampling, {answered:.2f} s of its environment and "
        figures += f"{scored:.2f} s of scoring on average"
        if scored >= SHARE * step:
            names = [key.split("/", 2)[2] for key in run.data.metrics[-1] if key.startswith(f"reward/{name}/")]
            functions = ", ".join(function for function in names if function not in ("mean", "num_turns"))
            yield (
                "warning",
                f"scoring of {name}",
                figures,
                [
                    Change(f"make its reward functions faster ({functions}), or asynchronous where they wait"),
                    *_ahead(run),
                ],
            )
        if answered >= SHARE * step:
            yield (
                "warning",
                f"the environment of {name}",
                figures,
                [Change("make its tools or responses faster, or asynchronous where they wait"), *_ahead(run)],
            )


def _ahead(run: RunRecord) -> list[Change]:
    if run.asynchronous:
        return []
    return [run.change("max_async_level", 1, "the learner and other rollouts then go on meanwhile")]


def _handover(run: RunRecord, step: float) -> Iterator[Cause]:
    seconds = _mean(run, "time/weight_sync")
    if seconds >= HANDOVER * step:
        batch = int(run.setting("batch_size", 128))
        yield (
            "warning",
            "handing weights to the sampler",
            f"time/weight_sync {seconds:.2f} s, {seconds / step:.0%} of a step",
            [run.change("batch_size", 2 * batch, "fewer and larger steps hand over less often")],
        )


def _synchronous(run: RunRecord, step: float) -> Iterator[Cause]:
    learning, sampling = _mean(run, "time/train"), _mean(run, "time/wait_batch")
    if learning >= LEARNING * step:
        changes = []
        if run.setting("learner.activation_checkpointing", False):
            changes.append(run.change("learner.activation_checkpointing", False, "each layer is then computed once"))
        tokens = int(run.setting("learner.micro_batch_tokens", 2048))
        changes.append(run.change("learner.micro_batch_tokens", 4 * tokens, "fewer and larger products"))
        yield "info", "learning", f"time/train {learning:.2f} s, {learning / step:.0%} of a step", changes
    longest, mean = _mean(run, "seq_len/max"), _mean(run, "seq_len/mean")
    if sampling >= TAIL * step and longest >= LONGEST * mean:
        yield (
            "info",
            "the longest rollouts",
            f"time/wait_batch {sampling:.2f} s, {sampling / step:.0%} of a step; the longest sequence has "
            f"{longest:.0f} tokens, the mean one {mean:.0f}",
            [run.change("max_async_level", 1, "nobody then waits for the longest rollout of a batch")],
        )


def _asynchronous(run: RunRecord, step: float) -> Iterator[Cause]:
    waits, learning, overlap = (_mean(run, name) for name in ("time/wait_policy", "time/train", "perf/overlap"))
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
            f"perf/overlap {overlap:.2f}; time/wait_batch {_mean(run, 'time/wait_batch'):.2f} s",
            [run.change("oversampling_factor", factor + 0.5, "more groups in flight hide the slow ones")],
        )
