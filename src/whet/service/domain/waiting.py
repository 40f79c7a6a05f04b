"""What a queued run waits for, in words, and its place in line."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from whet.service.domain.fairness import share_of
from whet.service.domain.placement import Amount, Place
from whet.service.domain.queue import line, waiting_runs
from whet.service.domain.runners import places
from whet.service.domain.trials import trials_of
from whet.service.domain.usage import exhausted, shares_of
from whet.service.storage.tables import Quota


@dataclass(frozen=True, slots=True)
class Wait:
    """Where a queued run stands; without a place it may not start yet."""

    place: int | None
    reason: str


def waits(session: Session, now: float) -> dict[str, Wait]:
    """By run, for every run in the queue."""
    rows = waiting_runs(session)
    trials = trials_of(session, rows)
    here = places(session, now)
    ordered = line(session, now, rows, trials)
    answer = {one.run: Wait(number, _why(one.needs, here, number)) for number, one in enumerate(ordered, start=1)}
    limits = {row.owner: row.running for row in session.scalars(select(Quota)) if row.running is not None}
    pairs = {(row.owner, row.user) for row in rows}
    shares = shares_of(session, {name for pair in pairs for name in pair}, now)
    used_up = {pair: exhausted(session, *pair, now) for pair in pairs}
    for row in rows:
        if row.id not in answer:
            why = trials[row.id].failed or trials[row.id].waits or used_up[row.owner, row.user]
            both = (row.owner, row.user)
            full = (name for name in both if share_of(shares, name).running >= limits.get(name, 1 << 60))
            name = next(full, row.owner)
            answer[row.id] = Wait(None, why or f"{name} has {limits.get(name)} runs in progress, its limit")
    return answer


def _why(needs: Amount, here: list[Place], number: int) -> str:
    if not here:
        return "no runner is alive; start one with: whet service runner"
    if not any(place.capacity.holds(needs) for place in here):
        largest = max(here, key=lambda place: (place.capacity.devices, place.capacity.cores))
        return f"no runner is large enough: it needs {largest.capacity.short_of(needs) or 'more than one has together'}"
    if not any(place.free.holds(needs) for place in here):
        able = [place for place in here if place.capacity.holds(needs)]
        freest = max(able, key=lambda place: place.free.cores)
        return f"number {number} in line; it needs {freest.free.short_of(needs)} that are free"
    return f"number {number} in line"
