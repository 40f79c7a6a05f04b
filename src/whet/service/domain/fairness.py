"""Which run is next. Pure.

Each owner has a decayed usage, in core seconds by the runners' prices, to which what runs now is added; and so has each
user, of its runs for all owners. A run stands behind as much as the larger of its owner's and its user's. The least is
next, then the fewest runs in progress, then the fewest in the queue; within an owner the higher priority, then age; and
else what waits longest. So one user is one, however many organisations it has; and so is an organisation.

A run that fits on no free runner does not block others, unless it has waited for an hour: then the runner that could
hold it takes no run that comes after it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# What fits where. Pure.
#
# A runner holds a run if its cores, its memory and its devices, less those of what runs there, cover the run's needs.
# Devices are not shared; `device_memory` is that of each.

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Amount:
    """Cores, bytes of memory, devices and bytes of each device: what a run needs, or what a runner has."""

    cores: float = 0.0
    memory: int = 0
    devices: int = 0
    device_memory: int = 0

    @staticmethod
    def of(values: Mapping[str, Any]) -> Amount:
        """From the JSON of a row; what is absent is none."""
        return Amount(
            float(values.get("cores") or 0.0),
            int(values.get("memory") or 0),
            int(values.get("devices") or 0),
            int(values.get("device_memory") or 0),
        )

    def holds(self, needs: Amount) -> bool:
        """Whether a runner with this much free holds a run."""
        enough = needs.cores <= self.cores and needs.memory <= self.memory and needs.devices <= self.devices
        return enough and (needs.devices == 0 or needs.device_memory <= self.device_memory)

    def less(self, taken: Iterable[Amount]) -> Amount:
        """What is left of a runner's capacity beside those runs; negative where more runs than it has."""
        cores, memory, devices = self.cores, self.memory, self.devices
        for one in taken:
            cores, memory, devices = cores - one.cores, memory - one.memory, devices - one.devices
        return Amount(cores, memory, devices, self.device_memory)

    def short_of(self, needs: Amount) -> str:
        """What is missing for a run, in words; empty if nothing is."""
        missing = []
        if needs.cores > self.cores:
            missing.append(
                f"{needs.cores:g} {'core' if needs.cores == 1 else 'cores'} (there are {max(0.0, self.cores):g})"
            )
        if needs.memory > self.memory:
            missing.append(f"{needs.memory / GIB:.1f} GiB of memory (there are {max(0, self.memory) / GIB:.1f})")
        if needs.devices > self.devices:
            missing.append(f"{needs.devices} devices (there are {max(0, self.devices)})")
        elif needs.devices and needs.device_memory > self.device_memory:
            wanted, there = needs.device_memory / GIB, self.device_memory / GIB
            missing.append(f"{wanted:.1f} GiB of memory on a device (there are {there:.1f})")
        return ", ".join(missing)


@dataclass(frozen=True, slots=True)
class RunnerCapacity:
    """A runner that takes runs: all that it has, and what is free."""

    runner: str
    capacity: Amount
    free: Amount


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
    user: str = ""  # "" where it is the owner

    @property
    def accounts(self) -> tuple[str, ...]:
        """Where its use is counted."""
        return (self.owner,) if self.user in ("", self.owner) else (self.owner, elsewhere(self.user))


def elsewhere(user: str) -> str:
    """The account of what a user uses in the name of others; no owner has such a name."""
    return f"@{user}"


@dataclass(frozen=True, slots=True)
class Share:
    """What an owner used, decayed to now and with what runs now; and how many runs it has in progress."""

    used: float = 0.0
    running: int = 0

    def __add__(self, other: Share) -> Share:
        return Share(self.used + other.used, self.running + other.running)


NO_SHARE = Share()


def share_of(shares: Mapping[str, Share], name: str) -> Share:
    """Of an organisation, or of a user wherever its runs are."""
    return shares.get(name, NO_SHARE) + shares.get(elsewhere(name), NO_SHARE)


def decayed(used: float, at: float, now: float) -> float:
    """What is left `now` of a usage as of `at`. A clock that went back takes nothing away."""
    return used * math.exp2(-max(0.0, now - at) / HALF_LIFE_S)


def in_order(waiting: Iterable[Waiting], shares: Mapping[str, Share]) -> Iterator[Waiting]:
    """The whole queue, as if each run started when it is its turn, and the usage of its owner and user grew by that."""
    lines: defaultdict[tuple[str, str], list[Waiting]] = defaultdict(list)
    state, queued = defaultdict(Share, shares), Counter[str]()
    for one in waiting:
        lines[one.owner, one.user or one.owner].append(one)
        queued.update({one.owner, one.user or one.owner})
    for line in lines.values():
        line.sort(key=lambda one: (-one.priority, one.queued_at, one.run), reverse=True)

    def order(names: tuple[str, str]) -> tuple[Any, ...]:
        both, first = [share_of(state, name) for name in names], lines[names][-1]
        used, running = max(one.used for one in both), max(one.running for one in both)
        waits = max(queued[name] for name in names)
        return used, running, waits, owner_waits[names[0]], names[0], -first.priority, first.queued_at, names[1]

    while lines:
        owner_waits: dict[str, float] = {}
        for (owner, _), line in lines.items():
            owner_waits[owner] = min(owner_waits.get(owner, math.inf), line[-1].queued_at)
        chosen = min(lines, key=order)
        one = lines[chosen].pop()
        yield one
        for account in one.accounts:
            state[account] += Share(Prices().share(one.needs, AHEAD_S), 1)
        if not lines[chosen]:
            del lines[chosen]


def next_run(
    ordered: Iterable[Waiting],
    places: Sequence[RunnerCapacity],
    runner: str,
    now: float,
    patience_s: float = PATIENCE_S,
) -> str | None:
    """The run that `runner` starts now; None where none fits, or where it is kept for one that waits too long."""
    kept: set[str] = set()
    here = next((machine for machine in places if machine.runner == runner), None)
    if here is None:
        return None
    for one in ordered:
        if here.free.holds(one.needs):
            return one.run
        if now - one.queued_at < patience_s or any(
            machine.free.holds(one.needs) for machine in places if machine.runner not in kept
        ):
            continue
        able = [machine for machine in places if machine.capacity.holds(one.needs) and machine.runner not in kept]
        if able:
            emptiest = max(able, key=lambda machine: (machine.free.cores, machine.free.memory, machine.runner))
            kept.add(emptiest.runner)
            if emptiest.runner == runner:
                return None
    return None
