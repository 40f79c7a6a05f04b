"""Which worker a job goes to, and what happens to the jobs of a worker that died. Pure.

The death of a worker ends all its rollouts, and which of them caused it is unknown. They are run again as before: most
deaths have causes outside, such as memory that ran out. Jobs whose worker died again are run alone in a worker. A job
that is alone when its worker dies, `DEATHS_AT_MOST` times, caused it, and its rollouts become errors.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from whet.rollouts.jobs import RolloutJob
from whet.rollouts.workers.child import Child

DEATHS_AT_MOST = 3  # of workers that had nothing but this job
DEATHS_TOGETHER = 1  # of workers with several jobs, after which a job is run as before


def shares(most: int, workers: int, processes: int) -> list[int]:
    """How many of `most` rollouts in flight each of `processes` may have; all but the first `workers` have none."""
    return [most // workers + (number < most % workers) if number < workers else 0 for number in range(processes)]


def own_workers(most: Sequence[int], workers: Sequence[int]) -> list[list[int]]:
    """For each source, how many rollouts each worker may have: all of them in its own workers, none in the others."""
    before = [sum(workers[:source]) for source in range(len(workers))]
    return [
        [limit if first <= number < first + count else 0 for number in range(sum(workers))]
        for limit, first, count in zip(most, before, workers, strict=True)
    ]


class JobQueue:
    """Jobs that wait for a worker: those of dead workers first, then in the order in which they came."""

    def __init__(self, limits: Sequence[Sequence[int]]) -> None:
        """`limits`: for each source, how many of its rollouts each worker may have in flight."""
        self._limits = limits
        self._jobs: deque[RolloutJob] = deque()
        self._alone: deque[RolloutJob] = deque()  # need a worker that has nothing else
        self._deaths: Counter[RolloutJob] = Counter()
        self._deaths_alone: Counter[RolloutJob] = Counter()

    def __len__(self) -> int:
        return len(self._jobs) + len(self._alone)

    @property
    def accepts(self) -> bool:
        """Whether every job found a worker, except those that wait to be run alone."""
        return not self._jobs

    def add(self, job: RolloutJob) -> None:
        self._jobs.append(job)

    def withdraw(self, job: RolloutJob) -> bool:
        """Take out a job that is not wanted any more; False where it does not wait."""
        self.done(job)
        for queue in (self._alone, self._jobs):
            if job in queue:
                queue.remove(job)
                return True
        return False

    def deaths(self, job: RolloutJob) -> int:
        """Of workers that had the job."""
        return self._deaths[job]

    def worker_died(self, jobs: Sequence[RolloutJob]) -> list[RolloutJob]:
        """Queue the jobs of a dead worker again, but for those it returns: they caused the death."""
        self._deaths.update(jobs)
        if len(jobs) == 1:
            self._deaths_alone.update(jobs)
        caused = [job for job in jobs if self._deaths_alone[job] >= DEATHS_AT_MOST]
        again = [job for job in jobs if job not in caused]
        self._alone.extend(job for job in again if self._runs_alone(job))
        self._jobs.extendleft(job for job in reversed(again) if not self._runs_alone(job))
        return caused

    def done(self, job: RolloutJob) -> None:
        """Forget the deaths of a job that is done."""
        self._deaths.pop(job, None)
        self._deaths_alone.pop(job, None)

    def next(self, children: Sequence[Child]) -> tuple[RolloutJob, Child] | None:
        """The first job of a source for which a worker has room, and the one with the most; else None."""
        for queue in (self._alone, self._jobs):
            for job in self._first_of_each_source(queue):
                rooms = [(self._room(job, child), -child.number, child) for child in children if child.ready]
                room, _, child = max(rooms, default=(0, 0, None), key=lambda room: room[:2])
                if room > 0 and child is not None:
                    queue.remove(job)
                    return job, child
        return None

    def _first_of_each_source(self, queue: deque[RolloutJob]) -> Iterator[RolloutJob]:
        """A source whose workers are busy or gone does not keep others from theirs."""
        seen: set[int] = set()
        for job in queue:
            if job.source not in seen:
                seen.add(job.source)
                yield job
            if len(seen) == len(self._limits):
                return

    def _room(self, job: RolloutJob, child: Child) -> int:
        """How many more rollouts of the job's source a worker may have in flight."""
        jobs = [job, *(given.job for given in child.given.values())] if self._deaths else [job]
        if len(jobs) > 1 and any(map(self._runs_alone, jobs)):
            return 0
        return self._limits[job.source][child.number] - child.busy

    def _runs_alone(self, job: RolloutJob) -> bool:
        return self._deaths[job] > DEATHS_TOGETHER
