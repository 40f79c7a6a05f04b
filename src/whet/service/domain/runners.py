"""Processes that start runs: what they announce, whether they live, and what is free on each."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from whet.service.answers import RunnerAnswer
from whet.service.domain.fairness import Amount, RunnerCapacity
from whet.service.domain.usage import IN_PROGRESS
from whet.service.storage.tables import AttemptRow, RunnerRow, RunRow

ALIVE_S = 60.0
"""A runner without a heartbeat for this long gets no share of the queue; its runs are not touched for that alone."""


def announce(session: Session, now: float, *, capacity: Mapping[str, Any], **process: Any) -> str:
    """Enter a runner that starts; returns its new id.

    Args:
        capacity: `cores`, `memory` (bytes), `devices`, `device_memory` (bytes of each), `device_kind`, and what they
            cost: `core_hour_price`, `device_hour_price`.
        process: `host`, `boot_id`, `pid`, `process_began` and `version` of it.
    """
    times = {"started_at": now, "heartbeat_at": now}
    row = RunnerRow(id=secrets.token_hex(8), capacity=dict(capacity), **times, **process)
    session.add(row)
    session.flush()
    return row.id


def heartbeat(session: Session, runner: str, now: float) -> bool:
    """Say that a runner lives. False for one that has left, which takes no more runs."""
    change = update(RunnerRow).where(RunnerRow.id == runner, RunnerRow.ended_at.is_(None)).values(heartbeat_at=now)
    return bool(session.execute(change).rowcount)  # type: ignore[attr-defined]


def leave(session: Session, runner: str, now: float) -> None:
    """A runner ends; its runs continue, for another one to adopt."""
    session.execute(update(RunnerRow).where(RunnerRow.id == runner).values(ended_at=now))


def alive(session: Session, now: float) -> list[RunnerRow]:
    query = select(RunnerRow).where(RunnerRow.ended_at.is_(None), RunnerRow.heartbeat_at > now - ALIVE_S)
    return list(session.scalars(query.order_by(RunnerRow.started_at, RunnerRow.id)))


def places(session: Session, now: float) -> list[RunnerCapacity]:
    """The runners that live, with what is free.

    What runs on a host without a runner that lives counts for each runner of that host, until one adopts it.
    """
    runners = alive(session, now)
    living = {runner.id for runner in runners}
    query = select(AttemptRow.runner_id, AttemptRow.host, RunRow.needs).join(RunRow, RunRow.id == AttemptRow.run_id)
    held = [
        (runner, host, Amount.of(needs))
        for runner, host, needs in session.execute(query.where(AttemptRow.state.in_(IN_PROGRESS)))
    ]
    answer = []
    for one in runners:
        taken = [
            needs for runner, host, needs in held if runner == one.id or (host == one.host and runner not in living)
        ]
        capacity = Amount.of(one.capacity)
        answer.append(RunnerCapacity(one.id, capacity, capacity.less(taken)))
    return answer


def runner_view(row: RunnerRow, capacity: RunnerCapacity | None, now: float) -> RunnerAnswer:
    return RunnerAnswer.of(
        row,
        free=None if capacity is None else asdict(capacity.free),
        state="ended" if row.ended_at is not None else "alive" if capacity is not None else "silent",
        silent_s=round(max(0.0, now - row.heartbeat_at), 1),
    )
