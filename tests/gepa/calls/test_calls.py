"""Calls: answered from the log where it can, made where it cannot, never beyond the budget, and heard to their end."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from whet.errors import EndpointError, GepaError
from whet.gepa.calls.budget import CallBudget, CostCap
from whet.gepa.calls.call_log import CallLog
from whet.gepa.calls.calls import Attempt, Calls, SearchStopped
from whet.gepa.calls.outage import Outage
from whet.gepa.types import BudgetSpent, Candidate, RolloutCall, Scored, SearchExample
from whet.rollouts.limits import Limit

SEED = {"system_prompt": "seed"}
OTHER = {"system_prompt": "other"}
DOWN = Attempt({}, "EndpointDownError: connection refused")


def examples(number: int) -> list[SearchExample]:
    return [SearchExample("sim", "val", place, place, {}) for place in range(number)]


@dataclass
class Watcher:
    """An observer that keeps what it is told."""

    phases: list[tuple[str, int]] = field(default_factory=list)
    heard: list[tuple[str, int, bool]] = field(default_factory=list)  # call, spent, replayed
    notes: list[str] = field(default_factory=list)

    def phase(self, phase: str, detail: str, total: int) -> None:
        self.phases.append((phase, total))

    def finished(self, scored: Scored, spent: int, cost: float | None, replayed: bool = False) -> None:
        self.heard.append((scored.call.key, spent, replayed))

    def note(self, line: str) -> None:
        self.notes.append(line)


@dataclass
class Room:
    """Runs made-up calls in the directory of one run; each `run` is another process."""

    directory: Path
    max_calls: int = 100
    reserved: int = 0
    max_concurrent: int = 4
    max_cost: float | None = None
    price: float | None = None
    outcome: Callable[[RolloutCall], Attempt | Exception | None] = lambda call: None  # None: as it should go
    made: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    most_in_flight: int = 0
    spent: float = 0.0
    watcher: Watcher = field(default_factory=Watcher)
    rest: float = 0.0  # seconds, before a look whether the endpoint is back
    hold: threading.Event | None = None  # calls do not end; it is told when one has begun

    async def execute(self, candidate: Candidate, example: SearchExample, call: RolloutCall, limit: Limit) -> Attempt:
        async with limit:
            self.made[call.key] += 1
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            await asyncio.sleep(0)
            if self.hold is not None:
                self.hold.set()
                await asyncio.sleep(3600)
            self.in_flight -= 1
            outcome = self.outcome(call)
            if isinstance(outcome, Exception):
                raise outcome
            row: dict[str, Any] = {"reward": float(example.number), "error": None, "metrics": {}}
            if self.price is not None:
                row["token_usage"] = {"cost": self.price}
                self.spent += self.price
        return outcome or Attempt(row)

    def run(self, search: Callable[[Calls], Any], *, closed_early: bool = False) -> Any:
        async def process() -> Any:
            log = CallLog(self.directory)
            calls = Calls(
                execute=self.execute,
                budget=CallBudget(self.max_calls, self.reserved, log.begun, log.confirming),
                cap=CostCap(self.max_cost),
                log=log,
                observer=self.watcher,  # type: ignore[arg-type]
                max_concurrent=self.max_concurrent,
                outage=Outage(2, self.rest),
                max_retries=2,
                cost=lambda: self.spent,
            )
            thread = asyncio.ensure_future(asyncio.to_thread(search, calls))
            try:
                if closed_early:
                    assert self.hold is not None
                    await asyncio.to_thread(self.hold.wait)
                    await calls.close()
                return await thread
            finally:
                await calls.close()
                log.close()

        return asyncio.run(process())


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def rewards(scored: list[Scored]) -> list[float]:
    return [one.reward for one in scored]


def test_answers_come_in_the_order_of_the_examples_with_all_places_taken(room: Room) -> None:
    found = room.run(lambda calls: calls.score(SEED, examples(10)[::-1], "baseline"))
    assert rewards(found) == [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]
    assert room.most_in_flight == 4
    assert room.watcher.phases == [("baseline", 10)]


def test_a_repeated_request_is_another_sample(room: Room) -> None:
    def search(calls: Calls) -> tuple[int, int]:
        calls.score(SEED, examples(3), "baseline")
        first = calls.left
        calls.score(SEED, examples(3), "race")
        return first, calls.left

    assert room.run(search) == (97, 94)
    assert sorted(key.rpartition("/")[2] for key in room.made) == ["0", "0", "0", "1", "1", "1"]


def test_candidates_of_equal_texts_are_the_same(room: Room) -> None:
    def search(calls: Calls) -> None:
        calls.score(SEED, examples(2), "baseline")
        calls.score(dict(SEED), examples(2), "race")

    room.run(search)
    assert sorted(key.rpartition("/")[2] for key in room.made) == ["0", "0", "1", "1"]


def test_the_next_process_is_answered_from_the_log_and_counts_as_the_first_did(room: Room) -> None:
    def search(calls: Calls) -> tuple[list[float], int]:
        return rewards(calls.score(SEED, examples(6), "baseline")), calls.left

    first = room.run(search)
    made = room.made.total()
    assert room.run(search) == first
    assert room.made.total() == made
    assert all(replayed for _, _, replayed in room.watcher.heard[6:])


def test_rounds_that_do_not_fit_are_refused_before_any_of_their_calls_is_begun(room: Room) -> None:
    room.max_calls, room.reserved = 10, 4

    def search(calls: Calls) -> str:
        calls.score(SEED, examples(5), "baseline")
        with pytest.raises(BudgetSpent) as refused:
            calls.score(SEED, examples(2), "race")
        calls.score(SEED, examples(1), "race")
        calls.score(SEED, examples(4), "confirmation")
        return str(refused.value)

    assert room.run(search) == "2 calls do not fit into the 1 that are left"
    assert room.made.total() == 10


def test_a_call_that_the_endpoint_failed_is_repeated_and_counted(room: Room) -> None:
    room.outcome = lambda call: DOWN if call.example.endswith("/1") and room.made[call.key] == 1 else None

    def search(calls: Calls) -> tuple[list[float], int]:
        return rewards(calls.score(SEED, examples(3), "baseline")), calls.left

    assert room.run(search) == ([0.0, 1.0, 2.0], 96)
    assert room.run(search) == ([0.0, 1.0, 2.0], 96)
    assert len(room.watcher.notes) == 1


def test_endpoint_down_costs_calls_in_flight_and_a_few_probes(room: Room) -> None:
    room.outcome = lambda call: DOWN
    with pytest.raises(GepaError, match="calls keep failing: EndpointDownError: connection refused"):
        room.run(lambda calls: calls.score(SEED, examples(50), "baseline"))
    assert room.made.total() <= room.max_concurrent + 2


def test_endpoint_failure_is_noted_once(room: Room) -> None:
    room.outcome = lambda call: DOWN if room.made.total() <= room.max_concurrent else None
    room.run(lambda calls: calls.score(SEED, examples(20), "baseline"))
    (note,) = room.watcher.notes
    assert "failed and is called again: EndpointDownError: connection refused" in note


def test_a_round_that_goes_wrong_is_heard_to_its_end(room: Room) -> None:
    room.outcome = lambda call: DOWN if call.example.endswith("/0") else None
    with pytest.raises(GepaError):
        room.run(lambda calls: calls.score(SEED, examples(20), "baseline"))
    made = set(room.made)
    room.outcome = lambda call: None
    room.run(lambda calls: calls.score(SEED, examples(20), "baseline"))
    again = [key for key in room.made if room.made[key] > 1 and "/0/" not in key]
    assert made
    assert not again, "what had finished is not made again"


def test_a_key_that_is_refused_ends_the_run_at_once(room: Room) -> None:
    room.max_concurrent = 1
    room.outcome = lambda call: EndpointError("the key is refused") if call.example.endswith("/3") else None
    with pytest.raises(EndpointError, match="the key is refused"):
        room.run(lambda calls: calls.score(SEED, examples(20), "baseline"))
    assert room.made.total() == 4


def test_nothing_is_begun_after_a_failure(room: Room) -> None:
    room.outcome = lambda call: EndpointError("the key is refused")

    def search(calls: Calls) -> None:
        for _ in range(2):
            with pytest.raises(EndpointError):
                calls.score(SEED, examples(4), "baseline")

    room.run(search)
    assert room.made.total() <= 4


def test_waiting_calls_return_when_the_run_ends(room: Room) -> None:
    room.rest = 3600.0
    room.outcome = lambda call: DOWN if call.example.endswith("/0") else EndpointError("the key is refused")
    with pytest.raises(EndpointError):
        room.run(lambda calls: calls.score(SEED, examples(50), "baseline"))


def test_there_is_no_call_left_to_make_one_again(room: Room) -> None:
    room.max_calls = 3
    room.outcome = lambda call: DOWN if room.made[call.key] == 1 else None

    def search(calls: Calls) -> None:
        with pytest.raises(BudgetSpent):
            calls.score(SEED, examples(3), "baseline")

    room.run(search)
    assert room.made.total() == 3


def test_no_call_is_begun_that_the_dollars_do_not_cover(room: Room) -> None:
    room.max_cost, room.price = 1.0, 0.11

    def search(calls: Calls) -> None:
        with pytest.raises(BudgetSpent):
            calls.score(SEED, examples(50), "baseline")
        with pytest.raises(BudgetSpent):
            calls.score(SEED, examples(1), "baseline")

    room.run(search)
    assert 1.0 - 0.11 <= room.spent <= 1.0 + 0.11


def test_a_search_that_is_stopped_keeps_what_has_finished(room: Room) -> None:
    room.run(lambda calls: calls.score(SEED, examples(3), "baseline"))
    room.hold = threading.Event()

    def search(calls: Calls) -> str:
        calls.score(SEED, examples(3), "baseline")
        try:
            calls.score(OTHER, examples(3), "race")
        except SearchStopped:
            try:
                calls.score(OTHER, examples(1), "race")
            except SearchStopped:
                return "stopped, and it stays so"
        return "it was not stopped"

    assert room.run(search, closed_early=True) == "stopped, and it stays so"
    room.hold = None
    assert rewards(room.run(lambda calls: calls.score(SEED, examples(3), "baseline"))) == [0.0, 1.0, 2.0]


def test_the_comparison_takes_as_many_examples_as_the_calls_left_pay_for(room: Room) -> None:
    room.max_calls, room.reserved = 12, 6

    def search(calls: Calls) -> list[int]:
        calls.score(SEED, examples(6), "baseline")
        before = calls.affordable([SEED, OTHER], examples(10)[6:])
        calls.score(SEED, examples(10)[6:8], "confirmation")
        return [before, calls.affordable([SEED, OTHER], examples(10)[6:])]

    assert room.run(search) == [3, 3]
