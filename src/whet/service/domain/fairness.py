"""Which run is next. Pure.

Each owner has a decayed usage, in core seconds by the runners' prices, to which what runs now is added. The owner with
the least is next, then the one with the fewest runs in progress, then the one with the fewest in the queue, then the
one that waits longest; within an owner the higher priority, then age. A run that fits on no free runner does not block
others, unless it has waited for an hour: then the runner that could hold it takes no run that comes after it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from whet.service.domain.placement import Amount, Place

HALF_LIFE_S = 24 * 3600.0
PATIENCE_S = 3600.0
AHEAD_S = 60.0
"""A run in progress counts as if it had run for this long beyond what was charged, so that starts count at once."""

DEVICE_CORES = 50.0
"""Cores that a device counts as, where a runner names no prices."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What an hour costs on a runner, in the currency of the deployment."""

    core_hour: float = 0.0
    device_hour: float = 0.0

    def cost(self, needs: Amount, seconds: float) -> float:
        return (needs.cores * self.core_hour + needs.devices * self.device_hour) * seconds / 3600.0

    def share(self, needs: Amount, seconds: float) -> float:
        """Core seconds, where a device counts as many cores as its price is that of."""
        known = self.core_hour > 0 and self.device_hour > 0
        weight = self.device_hour / self.core_hour if known else DEVICE_CORES
        return (needs.cores + needs.devices * weight) * seconds


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run in the queue."""

    run: str
    owner: str
    priority: int
    queued_at: float
    needs: Amount


@dataclass(frozen=True, slots=True)
class Share:
    """What an owner used, decayed to now and with what runs now; and how many runs it has in progress."""

    used: float = 0.0
    running: int = 0


def decayed(used: float, at: float, now: float) -> float:
    """What is left `now` of a usage as of `at`. A clock that went back takes nothing away."""
    return used * math.exp2(-max(0.0, now - at) / HALF_LIFE_S)


def in_order(waiting: Iterable[Waiting], shares: Mapping[str, Share]) -> Iterator[Waiting]:
    """The whole queue, as if each run started when it is its turn and its owner's usage grew by that."""
    lines: defaultdict[str, list[Waiting]] = defaultdict(list)
    for one in waiting:
        lines[one.owner].append(one)
    for line in lines.values():
        line.sort(key=lambda one: (-one.priority, one.queued_at, one.run), reverse=True)
    state = {owner: shares.get(owner, Share()) for owner in lines}
    queued = {owner: len(line) for owner, line in lines.items()}

    def order(name: str) -> tuple[float, int, int, float, str]:
        return state[name].used, state[name].running, queued[name], lines[name][-1].queued_at, name

    while lines:
        owner = min(lines, key=order)
        one = lines[owner].pop()
        yield one
        used = state[owner].used + Prices().share(one.needs, AHEAD_S)
        state[owner] = Share(used, state[owner].running + 1)
        if not lines[owner]:
            del lines[owner]


def next_run(
    ordered: Iterable[Waiting], places: Sequence[Place], runner: str, now: float, patience_s: float = PATIENCE_S
) -> str | None:
    """The run that `runner` starts now; None where none fits, or where it is kept for one that waits too long."""
    kept: set[str] = set()
    here = next((place for place in places if place.runner == runner), None)
    if here is None:
        return None
    for one in ordered:
        if here.free.holds(one.needs):
            return one.run
        if now - one.queued_at < patience_s or any(
            place.free.holds(one.needs) for place in places if place.runner not in kept
        ):
            continue
        able = [place for place in places if place.capacity.holds(one.needs) and place.runner not in kept]
        if able:
            emptiest = max(able, key=lambda place: (place.free.cores, place.free.memory, place.runner))
            kept.add(emptiest.runner)
            if emptiest.runner == runner:
                return None
    return None
