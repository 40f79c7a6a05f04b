"""Searches that are simulated: real budget, real log, real rounds of calls; only the rollouts are made up.

A process is killed at an event that the seed chooses: before or after a call is written down as begun, while it runs,
before or after it is written down as finished. What it had in memory is gone, and the last lines that it wrote may be
torn. Then the next process goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from whet.gepa.calls.budget import CallBudget, CostCap
from whet.gepa.calls.call_log import CallLog
from whet.gepa.calls.calls import Attempt, Calls
from whet.gepa.calls.outage import Outage
from whet.gepa.types import BudgetSpent, Candidate, Phase, RolloutCall, Scored, SearchExample
from whet.records.directory import CALLS
from whet.rollouts.limits import Limit


class Killed(BaseException):
    """The process is gone."""


def examples(split: Any, number: int) -> list[SearchExample]:
    return [SearchExample("sim", split, place, place, {}) for place in range(number)]


@dataclass
class World:
    """What really happened, over all processes of one run."""

    seed: int
    max_calls: int
    reserved: int
    concurrency: int
    failing: float = 0.0  # share of calls that fail for the endpoint's sake
    price: float | None = None  # dollars of the dearest call
    begun: Counter[str] = field(default_factory=Counter)
    heard: set[str] = field(default_factory=set)  # calls whose rows the search was given
    repeated: int = 0  # calls begun again after that
    in_flight: int = 0
    most_in_flight: int = 0
    cost: float = 0.0

    def reward(self, call: RolloutCall) -> float:
        return float(hashlib.blake2b(f"{self.seed}/{call.key}".encode(), digest_size=1).digest()[0] % 2)


@dataclass
class Life:
    """One process: it dies at event `end`, or (None) of old age."""

    world: World
    random: Random
    end: int | None
    events: int = 0

    def event(self) -> None:
        self.events += 1
        if self.end is not None and self.events >= self.end:
            raise Killed

    async def execute(self, candidate: Candidate, example: SearchExample, call: RolloutCall, limit: Limit) -> Attempt:
        world = self.world
        async with limit:
            self.event()
            world.begun[call.key] += 1
            world.repeated += call.key in world.heard
            world.in_flight += 1
            world.most_in_flight = max(world.most_in_flight, world.in_flight)
            try:
                for _ in range(self.random.randrange(4)):
                    await asyncio.sleep(0)
                    self.event()
            finally:
                world.in_flight -= 1
        row: dict[str, Any] = {"reward": world.reward(call), "error": None, "metrics": {}}
        if world.price is not None:
            row["token_usage"] = {"cost": world.price * self.random.uniform(0.5, 1.0)}
            world.cost += row["token_usage"]["cost"]
        failed = self.random.random() < world.failing
        return Attempt(row, "EndpointDownError: as simulated" if failed else None)


class MortalLog(CallLog):
    """A log whose process may die around every write."""

    def __init__(self, directory: Path, life: Life) -> None:
        super().__init__(directory)
        self._life = life

    async def begin(self, key: str, phase: Phase, cost: float | None = None) -> None:
        self._life.event()
        await super().begin(key, phase, cost)
        self._life.event()

    def finish(self, call: RolloutCall, row: Any) -> Scored:
        self._life.event()
        scored = super().finish(call, row)
        self._life.event()
        return scored


class Deaf:
    """An observer of nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@dataclass
class Search:
    """A search that is a function of its seed and of rewards alone; it asks for calls as the real one does."""

    world: World
    calls: Calls
    told: list[Any] = field(default_factory=list)  # phase, candidate and rewards, in order

    def score(self, candidate: Candidate, asked: Sequence[SearchExample], phase: Phase) -> float:
        scored = self.calls.score(candidate, asked, phase)
        self.world.heard.update(one.call.key for one in scored)
        self.told.append((phase, candidate["system_prompt"], [one.reward for one in scored]))
        return sum(one.reward for one in scored)

    def run(self, num_val: int = 12, minibatch: int = 3) -> None:
        train, val, held_out = (examples(split, number) for split, number in SIZES.items())
        random = Random(self.world.seed)
        pool: list[dict[str, str]] = [{"system_prompt": "seed"}]
        best = 0
        try:
            self.score(pool[0], val, "baseline")
            while self.calls.left >= 2 * minibatch + num_val:
                parent = random.choice(pool)
                child = {"system_prompt": f"{parent['system_prompt']}.{len(self.told)}"}
                some = random.sample(train, minibatch)
                before, after = (self.score(one, some, "minibatch") for one in (parent, child))
                if after > before:
                    half = self.score(child, val[: num_val // 2], "race")
                    if half >= num_val // 4:
                        self.score(child, val[num_val // 2 :], "race")
                        pool.append(child)
                        best = len(pool) - 1
        except BudgetSpent:
            pass
        if best:
            pairs = self.calls.affordable([pool[0], pool[best]], held_out)
            with contextlib.suppress(BudgetSpent):  # calls that failed had to be made again
                for candidate in (pool[0], pool[best]):
                    self.score(candidate, held_out[:pairs], "confirmation")


EVENTS_OF_A_CALL = 6  # about
SIZES = {"train": 20, "val": 12, "held_out": 10}


def live(world: World, directory: Path, random: Random, end: int | None) -> list[Any] | None:
    """One process of a run; what its search was told, None where it was killed."""
    life = Life(world, random, end)

    async def process() -> list[Any]:
        log = MortalLog(directory, life)
        calls = Calls(
            execute=life.execute,
            budget=CallBudget(world.max_calls, world.reserved, log.begun, log.confirming),
            cap=CostCap(None),
            log=log,
            observer=Deaf(),
            max_concurrent=world.concurrency,
            outage=Outage(5, 0.0),
            max_retries=5,
        )
        search = Search(world, calls)
        try:
            await asyncio.to_thread(search.run)
        finally:
            await calls.close()
            log.close()
        return search.told

    try:
        return asyncio.run(process())
    except Killed:
        _tear(directory, random)
        return None


def run(world: World, kills: int) -> tuple[list[Any], int]:
    """A run with so many kills at most; what the search of its last process was told, and how many kills there were."""
    random = Random(f"{world.seed} kills")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(kills):
            told = live(world, Path(folder), random, random.randrange(1, EVENTS_OF_A_CALL * world.max_calls))
            if told is not None:
                return told, number
        told = live(world, Path(folder), random, None)
        assert told is not None
        return told, kills


def _tear(directory: Path, random: Random) -> None:
    """Leave a last line that was being written."""
    torn = {CALLS: b'{"begin": ["abc/val/si', "rollouts/results.jsonl": b'{"reward": 1.0, "cand'}
    for name, line in torn.items():
        if random.random() < 0.5:
            with (directory / name).open("ab") as file:
                file.write(line)
