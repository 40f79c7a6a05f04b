"""The process and its resources: how the run ended, checkpoints, failing rollouts, and what makes a step slow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from whet.rl.doctor.record import MIN_STEPS, Advice, Found, RunRecord

OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|MemoryError|for its memory", re.I
)
"""What torch, Python, the kernel and the learner's process say when there was no memory left."""
SILENT_SECONDS, STEPS_SILENT = 60.0, 10.0
"""A heartbeat is due every 2 s, except while one thing is computed: ten mean steps, and a minute at least."""


def killed(run: RunRecord) -> Iterator[Found]:
    """The process of the run is gone, and its status still says that it runs."""
    if run.life.state == "died":
        what = "the run's process died without a word: killed, most often for its memory"
        evidence = [
            f"its heartbeat stopped {run.life.silent_seconds:.0f} s ago, and no process holds the run",
            _at(run),
        ]
        memory = Advice("continue it with --resume; `dmesg | grep -i kill` says whether it was memory")
        yield "error", what, evidence, [memory, *_less_memory(run)]


def out_of_memory(run: RunRecord) -> Iterator[Found]:
    """The run failed for its memory."""
    if run.life.state == "failed" and _lacked_memory(run):
        changes = [*_less_memory(run), Advice("then continue it with --resume")]
        yield "error", "the run ran out of memory", _last_error(run), changes


def failed(run: RunRecord) -> Iterator[Found]:
    """The run failed for another reason."""
    if run.life.state == "failed" and not _lacked_memory(run):
        change = Advice("mend what the error names, then continue the run with --resume")
        yield "error", "the run failed", _last_error(run), [change]


def stalled(run: RunRecord) -> Iterator[Found]:
    """The run waits for something longer than usual."""
    if run.life.state == "running" and run.life.stalled:
        why = "mend what keeps it waiting; the run replaces it or stops with a checkpoint at its deadline"
        yield "warning", "the run is stalled", [*run.life.stalled, _at(run)], [Advice(why)]


def silent(run: RunRecord) -> Iterator[Found]:
    """The run's process holds the run and gives no heartbeat."""
    life = run.life
    patience = max(SILENT_SECONDS, STEPS_SILENT * run.level("time/step"))
    if life.state == "running" and not life.stalled and life.silent_seconds > patience:
        evidence = [f"its last heartbeat was {life.silent_seconds:.0f} s ago", _at(run)]
        why = "something keeps its process from running: a reward function or a tool that does not come back?"
        yield "warning", "nothing has been heard of the run", evidence, [Advice(why)]


def _at(run: RunRecord) -> str:
    return f"the last step on record is {run.steps} of {run.setting('max_steps')}"


def _last_error(run: RunRecord) -> list[str]:
    return [f"its last error: {run.life.last_error}", _at(run)]


def _lacked_memory(run: RunRecord) -> bool:
    return OUT_OF_MEMORY.search(run.life.last_error or "") is not None


def _less_memory(run: RunRecord) -> Iterator[Advice]:
    tokens = int(run.setting("learner.micro_batch_tokens", 2048))
    yield run.change("learner.micro_batch_tokens", max(1, tokens // 2), "fewer tokens are computed at once")
    yield from run.unless_set("learner.activation_checkpointing", True, "less is kept for the gradient")
    rollouts, size = int(run.setting("max_concurrent", 512)), int(run.setting("rollouts_per_example", 8))
    if rollouts > size:
        yield run.change("max_concurrent", max(size, rollouts // 2), "fewer rollouts hold a cache at once")


APART = 1.15
"""Measured over said memory, either way, from which the plan was wrong: what benchmarks/memory.py asks of it."""
SPARE = 256.0
"""MiB that a plan has to be too large by: batches smaller than learner.micro_batch_tokens leave some."""
PROCESS_PARTS = ("main", "learner", "engine", "others", "shared")


def memory(run: RunRecord) -> Iterator[Found]:
    """The run takes other memory than its plan said: which process is it?"""
    said, peaks = run.series("memory/said_mib"), run.series("memory/peak_mib")
    if not len(said) or not len(peaks) or min(said.values[-1], max(peaks.values)) <= 0:
        return
    expected, peak = said.values[-1], max(peaks.values)
    more = peak > APART * expected
    less = expected > max(APART * peak, peak + SPARE) and len(peaks) >= MIN_STEPS
    if not more and not less:
        return
    pairs = {name: (_most(run, name), _most(run, f"said_{name}")) for name in PROCESS_PARTS}
    name = max(pairs, key=lambda one: (pairs[one][0] - pairs[one][1]) * (1 if more else -1))
    measured, planned = pairs[name]
    evidence = [
        f"{peak:,.0f} MiB at the peak, {expected:,.0f} by the plan",
        f"memory/{name}_mib {measured:,.0f}, memory/said_{name}_mib {planned:,.0f}: the largest difference",
    ]
    if not more:
        spare = run.scaled("learner.micro_batch_tokens", 2048, 2, "if time matters more than memory")
        yield "info", "the run takes less memory than its plan said", evidence, [spare]
        return
    of_environments = "data that environments hold is not in a plan: let them read it row by row"
    changes = [Advice(of_environments)] if name in ("main", "others") else []
    yield "warning", f"the run takes more memory than its plan said ({name})", evidence, [*changes, *_less_memory(run)]


def _most(run: RunRecord, name: str) -> float:
    return max(run.series(f"memory/{name}_mib").values, default=0.0)


MISSED_INTERVALS = 2
"""Intervals without a checkpoint before it is reported: one is being written."""


def checkpoints(run: RunRecord) -> Iterator[Found]:
    """Checkpoints that cannot be trusted, or that are not written: what a crash would cost."""
    life = run.life
    if life.checkpoints is None:
        return
    if life.faults:
        others = [step for step in life.checkpoints if all(f"step_{step}:" not in fault for fault in life.faults)]
        back = f"a resumed run goes on from step {max(others)}" if others else "no other is there to resume from"
        why = "remove the damaged directory; look at the disk, which gave back something else than was written"
        changes = [Advice(why)]
        if int(run.setting("checkpointing.keep_n_checkpoints", 10)) == 1:
            changes.append(run.change("checkpointing.keep_n_checkpoints", 3, "another is then there to resume from"))
        yield "error", "a checkpoint is damaged", [*life.faults, back], changes
    every = int(run.setting("checkpointing.save_every_n_steps", 50))
    newest = max(life.checkpoints, default=0)
    if run.steps - newest >= MISSED_INTERVALS * every and life.state in ("running", "failed"):
        done = f"step {run.steps} is done, the newest checkpoint is of step {newest}, one is due every {every} steps"
        why = "make room on the disk of the run directory; a crash would cost all steps since"
        yield "error", "no checkpoint is written", [done], [Advice(why)]


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


def errors(run: RunRecord) -> Iterator[Found]:
    """Rollouts fail: which error, in which environment, how often."""
    failed = run.recent("rollouts/errored_frac")
    if not len(failed) or failed.mean < SOME_ERRORS:
        return
    kinds: Counter[tuple[str, str]] = Counter()
    for row in run.errors:
        step, error = row.get("step"), row.get("error")
        if step is not None and error is not None and failed.steps[0] <= step <= failed.steps[-1]:
            kinds[str(row.get("environment")), str(error)] += int(row.get("rollouts") or 0)
    what = "rollouts fail"
    evidence = [f"{failed.mean:.1%} of the rollouts of {failed.span} failed, and their groups were sampled again"]
    hint = "mend what fails: its groups are sampled again, which costs time and changes which tasks are trained"
    most = kinds.most_common(3)
    for (environment, error), count in most:
        evidence.append(f"{f'{count} of {kinds.total()}' if count else 'some'} in {environment}: {error[:300]}")
    if most:
        (environment, error), _ = most[0]
        what = f"rollouts of {environment} fail with {error.partition(':')[0]}"
        names = " ".join(link.partition(":")[0] for link in error.split(" <- ")).casefold()
        hint = next((text for word, text in ERROR_HINTS.items() if word in names), hint)
    yield "error" if failed.mean >= MANY_ERRORS else "warning", what, evidence, [Advice(hint)]


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


def slow(run: RunRecord) -> Iterator[Found]:
    """What makes steps slow: scoring, environments, weights, or sampling and learning that wait for each other."""
    step = run.recent("time/step")
    if len(step) < MIN_STEPS or step.mean <= 0 or not len(run.series("time/wait_batch")):
        return
    causes = [*_environments(run, step.mean), *_handover(run, step.mean)]
    causes += _asynchronous(run, step.mean) if run.asynchronous else _synchronous(run, step.mean)
    took = f"a step takes {step.mean:.2f} s in {step.span}"
    for severity, what, why, changes in causes[:2]:
        yield severity, f"slow: {what}", [took, *why], changes


def _environments(run: RunRecord, step: float) -> Iterator[Found]:
    ahead = [run.change("max_async_level", 1, "the learner and other rollouts then go on meanwhile")]
    ahead = [] if run.asynchronous else ahead
    for name in run.environments:
        sampled, answered, scored = (run.level(f"time/{name}/{of}") for of in ("model", "environment", "score"))
        figures = f"a rollout of {name} takes {sampled:.2f} s of sampling, {answered:.2f} s of its environment and "
        figures += f"{scored:.2f} s of scoring on average"
        if scored >= WAITING_SHARE * step:
            names = [key.split("/", 2)[2] for key in run.data.metrics[-1] if key.startswith(f"reward/{name}/")]
            functions = ", ".join(function for function in names if function not in ("mean", "num_turns"))
            why = f"make its reward functions faster ({functions}), or asynchronous where they wait"
            yield "warning", f"scoring of {name}", [figures], [Advice(why), *ahead]
        if answered >= WAITING_SHARE * step:
            why = "make its tools or responses faster, or asynchronous where they wait"
            yield "warning", f"the environment of {name}", [figures], [Advice(why), *ahead]


def _handover(run: RunRecord, step: float) -> Iterator[Found]:
    seconds = run.level("time/weight_sync")
    if seconds >= HANDOVER * step:
        figures = f"time/weight_sync {seconds:.2f} s, {seconds / step:.0%} of a step"
        change = run.scaled("batch_size", 128, 2, "fewer and larger steps hand over less often")
        yield "warning", "handing weights to the sampler", [figures], [change]


def _larger_products(run: RunRecord) -> Advice:
    return run.scaled("learner.micro_batch_tokens", 2048, 4, "fewer and larger products")


def _synchronous(run: RunRecord, step: float) -> Iterator[Found]:
    learning, sampling = run.level("time/train"), run.level("time/wait_batch")
    if learning >= LEARNING * step:
        changes = [_larger_products(run)]
        if run.setting("learner.activation_checkpointing", False):
            once = run.change("learner.activation_checkpointing", False, "each layer is then computed once")
            changes.insert(0, once)
        yield "info", "learning", [f"time/train {learning:.2f} s, {learning / step:.0%} of a step"], changes
    longest, mean = run.level("seq_len/max"), run.level("seq_len/mean")
    if sampling >= TAIL * step and longest >= LONGEST * mean:
        figures = f"time/wait_batch {sampling:.2f} s, {sampling / step:.0%} of a step; the longest sequence has "
        figures += f"{longest:.0f} tokens, the mean one {mean:.0f}"
        change = run.change("max_async_level", 1, "no step then waits for the longest rollout of its batch")
        yield "info", "the longest rollouts", [figures], [change]


def _asynchronous(run: RunRecord, step: float) -> Iterator[Found]:
    waits, learning, overlap = map(run.level, ("time/wait_policy", "time/train", "perf/overlap"))
    if waits >= IDLE * step:
        figures = f"in {waits:.2f} s of a step nothing could be sampled before new weights came; "
        figures += f"time/train {learning:.2f} s"
        level = int(run.setting("max_async_level", 1))
        further = run.change("max_async_level", level + 1, "sampling may then go further ahead")
        yield "info", "sampling waits for learning", [figures], [further, _larger_products(run)]
    elif overlap < OVERLAP:
        figures = f"perf/overlap {overlap:.2f}; time/wait_batch {run.level('time/wait_batch'):.2f} s"
        factor = float(run.setting("oversampling_factor", 1.0))
        change = run.change("oversampling_factor", factor + 0.5, "more groups in flight hide the slow ones")
        yield "info", "sampling and learning take turns", [figures], [change]
