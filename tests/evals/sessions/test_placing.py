"""Which worker a job goes to, and who is suspected when one dies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from whet.evals.workers.assignment import DEATHS_AT_MOST, Line, Suspects, shares
from whet.evals.workers.child import Given
from whet.evals.workers.jobs import Job


@dataclass
class Worker:
    """What placing looks at of a worker."""

    number: int
    ready: bool = True
    given: dict[int, Given] = field(default_factory=dict)
    busy: int = 0

    def give(self, job: Job) -> None:
        self.given[len(self.given)] = Given(job)
        self.busy += len(job.places)

    def die(self) -> list[Job]:
        jobs = [given.job for given in self.given.values()]
        self.given, self.busy = {}, 0
        return jobs


def job(task: int, evaluation: int = 0) -> Job:
    return Job(evaluation, task, (0,))


def place_all(line: Line, workers: list[Any]) -> list[tuple[int, int]]:
    """(task, worker) of every job that finds a place."""
    placed = []
    while (found := line.next(workers)) is not None:
        found[1].give(found[0])  # type: ignore[call-arg, arg-type]
        placed.append((found[0].task, found[1].number))
    return placed


@pytest.mark.parametrize(
    ("most", "workers", "expected"), [(512, 2, [256, 256, 0]), (5, 3, [2, 2, 1]), (3, 1, [3, 0, 0])]
)
def test_workers_share_what_may_be_in_flight(most: int, workers: int, expected: list[int]) -> None:
    assert shares(most, workers, 3) == expected


def test_jobs_go_in_order_to_the_worker_with_the_most_room() -> None:
    line, workers = Line([[2, 1]], Suspects()), [Worker(0), Worker(1)]
    for task in range(5):
        line.add(job(task))
    assert place_all(line, workers) == [(0, 0), (1, 0), (2, 1)]
    assert len(line) == 2


def test_a_job_waits_for_a_worker_of_its_evaluation_and_for_one_that_is_ready() -> None:
    line, workers = Line([[0, 1]], Suspects()), [Worker(0), Worker(1, ready=False)]
    line.add(job(0))
    assert place_all(line, workers) == []
    workers[1].ready = True
    assert place_all(line, workers) == [(0, 1)]


def test_what_a_dead_worker_had_goes_first() -> None:
    line, workers = Line([[4]], Suspects()), [Worker(0)]
    line.add(job(2))
    line.again([job(0), job(1)])
    assert [task for task, _ in place_all(line, workers)] == [0, 1, 2]


def test_one_that_kills_is_found_among_256_and_nobody_else_is_blamed() -> None:
    suspects, workers = Suspects(), [Worker(0)]
    line = Line([[256]], suspects)
    for task in range(256):
        line.add(job(task))
    finished, guilty, deaths = set(), [], 0
    while place_all(line, workers):
        jobs = workers[0].die()
        if job(99) not in jobs:
            for one in jobs:
                suspects.cleared(one)
                finished.add(one.task)
            continue
        deaths += 1
        guilty += suspects.died_with(jobs)
        line.again([one for one in jobs if one not in guilty])
    assert guilty == [job(99)]
    assert deaths == 4 + DEATHS_AT_MOST  # among 256, 64, 16 and 4, then alone
    assert finished == set(range(256)) - {99}


def test_deaths_by_bad_luck_alone_blame_nobody() -> None:
    suspects = Suspects()
    for _ in range(10):
        assert suspects.died_with([job(0), job(1)]) == []
