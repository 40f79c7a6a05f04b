"""Which worker a job goes to, and what a worker's death says about the rollouts it had. Pure.

A rollout that kills its worker takes everybody else's with it, and nobody can tell which it was. So rollouts whose
worker died are suspects: they are run again with fewer beside them, a quarter at each death, until one that kills is
alone, is known, and becomes an error. The innocent finish on the way.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from whet.evals.workers.child import Child
from whet.evals.workers.jobs import Job

DEATHS_AT_MOST = 3  # of workers that had nothing but this rollout, or its group, to run


def shares(most: int, workers: int, processes: int) -> list[int]:
    """How many of `most` rollouts in flight each of `processes` may have; all but the first `workers` have none."""
    return [most // workers + (number < most % workers) if number < workers else 0 for number in range(processes)]


class Suspects:
    """Deaths of workers, by the rollouts that they had."""

    def __init__(self) -> None:
        self._deaths: Counter[tuple[int, int, int]] = Counter()
        self._alone: Counter[tuple[int, int, int]] = Counter()

    def __bool__(self) -> bool:
        return bool(self._deaths)

    def deaths(self, job: Job) -> int:
        """Of workers that had some of the job's rollouts."""
        return max(self._deaths[key] for key in _keys(job))

    def died_with(self, jobs: Sequence[Job]) -> list[Job]:
        """Count a death. The jobs that are guilty: nothing else was there, too often."""
        for job in jobs:
            for key in _keys(job):
                self._deaths[key] += 1
                self._alone[key] += len(jobs) == 1
        return [job for job in jobs if any(self._alone[key] >= DEATHS_AT_MOST for key in _keys(job))]

    def cleared(self, job: Job) -> None:
        """It is done: whatever killed its workers, it was not this."""
        if self._deaths:
            for key in _keys(job):
                self._deaths.pop(key, None)
                self._alone.pop(key, None)


def _keys(job: Job) -> Iterable[tuple[int, int, int]]:
    return ((job.evaluation, job.task, place) for place in job.places)


class Line:
    """Jobs that wait for a worker: those of dead workers first, then in the order in which they came."""

    def __init__(self, limits: Sequence[Sequence[int]], suspects: Suspects) -> None:
        """`limits`: for each evaluation, how many of its rollouts each worker may have in flight."""
        self._limits, self._suspects = limits, suspects
        self._jobs: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        self._jobs.append(job)

    def again(self, jobs: Sequence[Job]) -> None:
        self._jobs.extendleft(reversed(jobs))

    def next(self, children: Sequence[Child]) -> tuple[Job, Child] | None:
        """The first job and the worker with the most room for it; None while no worker has any."""
        if not self._jobs:
            return None
        job = self._jobs[0]
        rooms = [(self._room(job, child), -child.number) for child in children if child.ready]
        most, number = max(rooms, default=(0, 0))
        if most < 1:
            return None
        self._jobs.popleft()
        return job, next(child for child in children if child.number == -number)

    def _room(self, job: Job, child: Child) -> int:
        limit = self._limits[job.evaluation][child.number]
        if not self._suspects:
            return limit - child.busy
        deaths = max((self._suspects.deaths(given.job) for given in child.given.values()), default=0)
        deaths = max(deaths, self._suspects.deaths(job))
        if deaths and limit:
            limit = max(1, limit >> (2 * deaths))
            # A group that was run alone is to be alone, also once some of its rollouts have finished.
            return 0 if limit == 1 and child.given else limit - child.busy
        return limit - child.busy
