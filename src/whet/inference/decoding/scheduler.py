"""Which request decodes in which slot: the state of continuous batching, without tensors and without asyncio.

A *job* waits, runs in a cache slot, and ends. Slots are in one of three states:

    free ──admit──▶ running ──finish──▶ parked (a rollout's keys and values, kept for its next turn)
      ▲                │ cancel            │ admit (same rollout: continues where it ended)
      └────────────────┴──── release, eviction (oldest first), new weights ◀┘

Jobs are admitted in order of arrival and never overtake one another, so the same requests in the same order meet the
same slots. The rectangle of slots x columns never exceeds the token budget. What is reused is decided by comparing
token ids, and only keys and values computed wholly by the current weights are ever reused: after an update every new
prompt is computed afresh. Rows that run while weights change keep what they have. Each adapter has keys and values of
its own: nothing is ever shared between two, or with the engine's own weights.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from whet.inference.protocol import SampleRequest, VersionRun
from whet.system.quiet import Quiet

_TOO_WIDE = 2
"""Columns kept from earlier requests, as a multiple of what is needed now, beyond which they are freed."""


@dataclass(slots=True, eq=False)
class LoadedAdapter:
    """An adapter in addition to the engine's own weights. Jobs hold a reference, so it lives until they end."""

    name: str
    version: int
    packed: Any  # the scheduler never looks at it
    served: bool = True  # False once unloaded: nothing it computes is kept


@dataclass(slots=True, eq=False)
class SampleJob:
    """One request on its way. `waiter` is whatever the driver answers through; the scheduler never looks at it."""

    request: SampleRequest
    seed: int
    waiter: Any = None
    adapter: LoadedAdapter | None = None  # None: the engine's own weights
    slot: int | None = None
    marks: list[tuple[int, int]] = field(default_factory=list)  # (version, first position it drew)
    kept: list[Any] = field(default_factory=list)  # what was left to draw each token from, where that is recorded
    likeliest: list[Any] = field(default_factory=list)  # tokens where each was drawn, where that is wanted
    scorer: Any = None  # of the prompt, where that is wanted; the scheduler never looks at it
    round: int | None = None  # of admissions, the first one that it waited for

    @property
    def total(self) -> int:
        """Columns needed at most."""
        return len(self.request.prompt_ids) + self.request.params.max_tokens

    def versions(self, end: int) -> list[VersionRun]:
        """Runs of equal version over the tokens drawn at positions up to `end` (exclusive)."""
        starts = [start for _, start in self.marks] + [end]
        pairs = zip(self.marks, starts[1:], strict=True)
        return [VersionRun(version, stop - start) for (version, start), stop in pairs if stop > start]


@dataclass(slots=True)
class Slot:
    state: Literal["free", "running", "parked"] = "free"
    job: SampleJob | None = None
    ids: list[int] = field(default_factory=list)  # tokens whose keys and values columns 0, 1, ... hold
    adapter: LoadedAdapter | None = None  # whose keys and values they are
    version: int = -1  # weights that computed all of them; -1 = mixed or unknown
    rollout_key: str | None = None
    group_key: str | None = None
    parked_at: int = 0


@dataclass(frozen=True, slots=True)
class Admission:
    """Run `job` in `slot`: take `reused` columns (from `donor` unless they are there already), compute the rest."""

    job: SampleJob
    slot: int
    reused: int
    donor: int | None


class Scheduler:
    """See above. `max_rows` bounds rows decoded together, twice that all slots; `token_budget` slots x columns.

    With `keep_columns` the rectangle stays as wide as it was once all slots are free, unless that is a waste.
    """

    def __init__(self, *, max_rows: int, token_budget: int, keep_columns: bool = False) -> None:
        self.max_rows, self.token_budget, self.keep_columns = max_rows, token_budget, keep_columns
        self.slots: list[Slot] = []
        self.columns = 0
        self.version = 0
        self.waiting: deque[SampleJob] = deque()
        self._clock = self._round = 0

    @property
    def running(self) -> list[SampleJob]:
        return [slot.job for slot in self.slots if slot.job is not None]

    @property
    def jobs(self) -> list[SampleJob]:
        """All that run or wait."""
        return [*self.running, *self.waiting]

    @property
    def empty(self) -> bool:
        """Whether no slot holds anything."""
        return all(slot.state == "free" for slot in self.slots)

    @property
    def rows(self) -> int:
        """Rows a decode step must span: one more than the last running slot."""
        return max((i + 1 for i, slot in enumerate(self.slots) if slot.state == "running"), default=0)

    def submit(self, job: SampleJob) -> None:
        assert job.total <= self.token_budget, "the driver refuses what can never fit"
        self.waiting.append(job)

    def admit(self, *, by_rollout: bool = False) -> list[Admission]:
        """Move jobs from the queue to slots while rows and memory last.

        With `by_rollout`, the order of those that came since the last time is that of their rollouts' names.
        """
        if by_rollout:
            self._order_arrivals()
        admitted: list[Admission] = []
        running = len(self.running)
        if self.empty:
            self.slots.clear()  # start over, so that one very long request does not narrow the rectangle for good
            if not (self.keep_columns and self._still_suit(self.columns)):
                self.columns = 0
        while self.waiting and running < self.max_rows:
            job = self.waiting[0]
            index = self._slot(job)
            if index is None:
                break
            self.waiting.popleft()
            admitted.append(self._occupy(job, index))
            running += 1
        return admitted

    def _order_arrivals(self) -> None:
        self._round += 1
        for job in self.waiting:
            job.round = self._round if job.round is None else job.round
        self.waiting = deque(sorted(self.waiting, key=lambda job: (job.round, job.request.rollout_key or "")))

    def finish(self, job: SampleJob, ids: list[int]) -> None:
        """The job ended; columns hold `ids`. The slot is parked when its rollout may come back, freed otherwise."""
        assert job.slot is not None
        slot = self.slots[job.slot]
        job.slot, slot.job = None, None
        unloaded = slot.adapter is not None and not slot.adapter.served
        if slot.rollout_key is None or unloaded or slot.version != self.version_of(slot.adapter):
            self._free(slot)
            return
        self._clock += 1
        slot.state, slot.ids, slot.parked_at = "parked", ids, self._clock

    def cancel(self, job: SampleJob) -> None:
        """Forget a job, waiting or running; unknown jobs are ignored."""
        if job.slot is not None:
            self._free(self.slots[job.slot])
            job.slot = None
        elif job in self.waiting:
            self.waiting.remove(job)

    def release(self, rollout_key: str) -> None:
        for slot in self.slots:
            if slot.rollout_key == rollout_key:
                slot.rollout_key = None
                if slot.state == "parked":
                    self._free(slot)

    def set_version(self, version: int) -> None:
        """New weights of the engine's own: nothing they have computed before may be reused."""
        self.version = version
        self.forget(None)

    def version_of(self, adapter: LoadedAdapter | None) -> int:
        """Version of an adapter's weights, or of the engine's own."""
        return self.version if adapter is None else adapter.version

    def forget(self, adapter: LoadedAdapter | None) -> None:
        """Nothing that an adapter, or the engine's own weights, have computed so far may be reused."""
        for slot in self.slots:
            if slot.adapter is adapter:
                slot.version = -1
                if slot.state == "parked":
                    self._free(slot)

    def clear(self) -> list[SampleJob]:
        """Forget everything; returns the jobs that were waiting or running."""
        jobs = self.jobs
        for job in jobs:
            job.slot = None
        self.waiting.clear()
        for slot in self.slots:
            self._free(slot)
        return jobs

    def compaction(self) -> list[tuple[int, int]]:
        """Pairs (running slot at the end, idle slot nearer the front) worth exchanging; they are exchanged here.

        Idle slots between running ones cost a decode step as much as running ones, and moving a row costs about two
        steps of that row, so nothing moves until a quarter of the rows is idle.
        """
        rows, running = self.rows, len(self.running)
        if rows - running <= max(2, rows // 4):
            return []
        idle = [i for i in range(running) if self.slots[i].state != "running"]
        late = [i for i in range(running, rows) if self.slots[i].state == "running"]
        pairs = list(zip(late, idle, strict=True))
        for source, target in pairs:
            self.slots[source], self.slots[target] = self.slots[target], self.slots[source]
            job = self.slots[target].job
            assert job is not None
            job.slot = target
        return pairs

    def _slot(self, job: SampleJob) -> int | None:
        """A slot for this job, by reuse, vacancy, growth or eviction; None when it has to wait."""
        key = job.request.rollout_key
        parked = [i for i, slot in enumerate(self.slots) if slot.state == "parked"]
        own = next((i for i in parked if key is not None and _continues(self.slots[i], job)), None)
        columns = max(self.columns, rounded(job.total))
        if max(1, len(self.slots)) * columns > self.token_budget:
            columns = max(self.columns, job.total)
        if max(1, len(self.slots)) * columns > self.token_budget and not self._shrink(columns):
            return None
        if own is not None and own >= len(self.slots):
            own = None
        free = next((i for i, slot in enumerate(self.slots) if slot.state == "free"), None)
        room = len(self.slots) < 2 * self.max_rows and (len(self.slots) + 1) * columns <= self.token_budget
        if own is None and free is None and room:
            free = len(self.slots)
            self.slots.append(Slot())
        if own is None and free is None:
            parked = [i for i, slot in enumerate(self.slots) if slot.state == "parked"]
            if not parked:
                return None
            free = min(parked, key=lambda i: self.slots[i].parked_at)
            self._free(self.slots[free])
        self.columns = columns
        return own if own is not None else free

    def _still_suit(self, columns: int) -> bool:
        """Whether so many columns waste little on what waits now, and cost no row."""
        widest = rounded(max((job.total for job in self.waiting), default=0))
        return columns <= _TOO_WIDE * widest and self.max_rows * columns <= self.token_budget

    def _shrink(self, columns: int) -> bool:
        """Drop idle slots from the end until `columns` fit the budget; False when running rows are in the way."""
        while len(self.slots) * columns > self.token_budget and self.slots and self.slots[-1].state != "running":
            self.slots.pop()
        return max(1, len(self.slots)) * columns <= self.token_budget

    def _occupy(self, job: SampleJob, index: int) -> Admission:
        slot, request = self.slots[index], job.request
        prompt = request.prompt_ids
        donor: int | None = None
        reused = _common_prefix(slot.ids, prompt) if slot.state == "parked" else 0
        version = self.version_of(job.adapter)
        if reused == 0 and request.group_key is not None:
            best = 0
            for i, other in enumerate(self.slots):
                alike = other.adapter is job.adapter and other.version == version
                if i != index and alike and other.group_key == request.group_key:
                    common = _common_prefix(other.ids, prompt)
                    if common > best:
                        best, donor = common, i
            reused = best
        job.slot = index
        job.marks = [(version, len(prompt))]
        slot.state, slot.job, slot.adapter, slot.version = "running", job, job.adapter, version
        slot.ids = prompt[:-1]
        slot.rollout_key, slot.group_key = request.rollout_key, request.group_key
        needed = len(prompt) if request.scoring is None else request.scoring.first(len(prompt))
        return Admission(job=job, slot=index, reused=min(reused, needed - 1), donor=donor)

    @staticmethod
    def _free(slot: Slot) -> None:
        slot.state, slot.job, slot.ids, slot.adapter, slot.version = "free", None, [], None, -1
        slot.rollout_key = slot.group_key = None


def _continues(slot: Slot, job: SampleJob) -> bool:
    """Whether a parked slot is that of an earlier turn of the job's rollout, by the same weights."""
    return slot.rollout_key == job.request.rollout_key and slot.adapter is job.adapter


def _common_prefix(left: list[int], right: list[int]) -> int:
    """Length of the longest common prefix. Equal as far as the shorter goes is the usual case and is tried first."""
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:
        return shorter
    return next(i for i in range(shorter) if left[i] != right[i])


# How many columns the KV cache holds, and how many of them a decode step reads. Pure decisions.
#
# A decode step on a CPU is mostly reading keys and values, in products of two or so rows with each slot's columns.
# Where those are all the columns there are, one slot's lie right behind the other's, and a column costs less than half
# of what it does where part of each slot is skipped. So there the cache is only as wide as the rows are by now, growing
# as they do, and a step reads the whole of it. A GPU reads parts as well as the whole, and its memory would be broken
# up by rectangles of ever other sizes: there all columns that the rows may come to need are held from the start.

WIDTH_STEP = 16
"""Attention over a part spans a multiple of this many columns, which keeps its inner loops on whole vectors.
With fewer or others, sums are added up in another order."""


def rounded(columns: int) -> int:
    """Rounded up to an eighth of a power of two: growing stays rare, and rows lie close together in memory."""
    step = max(32, 1 << max(columns.bit_length() - 3, 0))
    return -(-columns // step) * step


def columns_held(needed: int, most: int, *, on_cpu: bool) -> int:
    """Columns to hold while rows have need of `needed`, and will of `most` at the end."""
    return min(rounded(needed), most) if on_cpu else most


def columns_read(needed: int, held: int, *, on_cpu: bool) -> int:
    """Columns to read while the longest row has need of `needed`."""
    if on_cpu and 2 * needed > held:
        return held
    return min(-(-needed // WIDTH_STEP) * WIDTH_STEP, held)


# What an engine waits for between two decode steps: rollouts that come back with their next request.
#
# Rollouts that are decoded together influence the last bits of each other's logprobs. For runs that repeat bit by bit,
# whichever process their environments run in, the requests of a step are all that follow from the answers so far, in
# the order of their rollouts (`when_quiet`). Otherwise a few turns of the event loop are enough (`let_others_run`).

Settle: TypeAlias = Callable[[bool], Awaitable[None]]
"""Called between decode steps; whether answers were finished, or there were none."""

TURNS_AFTER_FINISH = 4
"""Turns of the event loop a finished rollout has to come back with its next request before the next step."""
AFTER_ROLLOUTS = 1
"""Rank of the engine's wait for a quiet event loop: what decides which rollouts begin has waited with rank 0."""


async def let_others_run(finished: bool) -> None:
    """A few turns of the event loop after answers, else one."""
    for _ in range(TURNS_AFTER_FINISH if finished else 1):
        await asyncio.sleep(0)


async def when_quiet(finished: bool) -> None:
    """After answers, until nothing is left to do but to wait: see `whet.system.quiet`."""
    quiet = Quiet.here()
    if finished and quiet is not None:
        await quiet.wait(AFTER_ROLLOUTS)
    else:
        await let_others_run(finished)
