"""Which worker a job goes to, and what happens to the jobs of a worker that died."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from whet.rollouts.jobs import RolloutJob
from whet.rollouts.workers.assignment import DEATHS_AT_MOST, DEATHS_TOGETHER, JobQueue, shares
from whet.rollouts.workers.child import Given


@dataclass
class Worker:
    """The part of a worker that assignment reads."""

    number: int
    ready: bool = True
    given: dict[int, Given] = field(default_factory=dict)
    busy: int = 0

    def give(self, job: RolloutJob) -> None:
        self.given[len(self.given)] = Given(job)
        self.busy += len(job.indices)

    def die(self) -> list[RolloutJob]:
        jobs = [given.job for given in self.given.values()]
        self.given, self.busy = {}, 0
        return jobs


def job(task: int, source: int = 0) -> RolloutJob:
    return RolloutJob(source, task, (0,))


def place_all(queue: JobQueue, workers: list[Any]) -> list[tuple[int, int]]:
    """(task, worker) of every job that a worker has room for."""
    placed = []
    while (found := queue.next(workers)) is not None:
        found[1].give(found[0])  # type: ignore[call-arg, arg-type]
        placed.append((found[0].task, found[1].number))
    return placed


@pytest.mark.parametrize(
    ("most", "workers", "expected"), [(512, 2, [256, 256, 0]), (5, 3, [2, 2, 1]), (3, 1, [3, 0, 0])]
)
def test_shares_add_up_to_the_limit(most: int, workers: int, expected: list[int]) -> None:
    assert shares(most, workers, 3) == expected


def test_jobs_go_in_order_to_the_worker_with_the_most_room() -> None:
    queue, workers = JobQueue([[2, 1]]), [Worker(0), Worker(1)]
    for task in range(5):
        queue.add(job(task))
    assert place_all(queue, workers) == [(0, 0), (1, 0), (2, 1)]
    assert len(queue) == 2
    assert not queue.accepts


def test_a_job_waits_for_a_ready_worker_of_its_source() -> None:
    queue, workers = JobQueue([[0, 1]]), [Worker(0), Worker(1, ready=False)]
    queue.add(job(0))
    assert place_all(queue, workers) == []
    workers[1].ready = True
    assert place_all(queue, workers) == [(0, 1)]


def test_jobs_of_a_dead_worker_go_first_and_together() -> None:
    queue, workers = JobQueue([[4]]), [Worker(0)]
    queue.add(job(2))
    assert queue.worker_died([job(0), job(1)]) == []
    assert [task for task, _ in place_all(queue, workers)] == [0, 1, 2]


def test_a_second_death_makes_jobs_run_alone_while_other_workers_continue() -> None:
    queue, workers = JobQueue([[2, 2]]), [Worker(0), Worker(1)]
    workers[1].give(job(9))
    for _ in range(DEATHS_TOGETHER + 1):
        place_all(queue, workers)
        queue.worker_died(workers[0].die() or [job(0), job(1)])
    queue.add(job(2))
    assert place_all(queue, workers) == [(0, 0), (2, 1)]
    assert queue.accepts  # job 1 waits to be run alone, and new jobs are taken
    queue.done(workers[0].die()[0])
    assert place_all(queue, workers) == [(1, 0)]


def test_a_job_that_kills_is_found_among_256_and_no_other_is_blamed() -> None:
    queue, workers = JobQueue([[256]]), [Worker(0)]
    for task in range(256):
        queue.add(job(task))
    finished, caused, deaths = set(), [], 0
    while place_all(queue, workers):
        jobs = workers[0].die()
        if job(99) not in jobs:
            for one in jobs:
                queue.done(one)
                finished.add(one.task)
            continue
        deaths += 1
        caused += queue.worker_died(jobs)
    assert caused == [job(99)]
    assert deaths == DEATHS_TOGETHER + 1 + DEATHS_AT_MOST  # among all, then alone
    assert finished == set(range(256)) - {99}
    assert len(queue) == 0


def test_deaths_with_several_jobs_blame_none() -> None:
    queue = JobQueue([[2]])
    for _ in range(10):
        assert queue.worker_died([job(0), job(1)]) == []
