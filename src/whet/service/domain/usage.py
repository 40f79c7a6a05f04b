"""What owners used and may use: charged while runs run, decayed for fairness, summed by day and month."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from whet.service.domain.fairness import AHEAD_S, Amount, Prices, Share, Waiting, decayed, elsewhere
from whet.service.storage.tables import AttemptRow, Quota, RunnerRow, RunRow, UsageDay

DAY_S = 86_400.0
COUNTS = (
    "core_seconds",
    "device_seconds",
    "run_seconds",
    "tokens",
    "cost",
    "requests",
    "input_tokens",
    "output_tokens",
)
IN_PROGRESS = ("starting", "running")


def prices_of(capacity: Mapping[str, Any]) -> Prices:
    """The prices that a runner announced."""
    return Prices(float(capacity.get("core_hour_price") or 0.0), float(capacity.get("device_hour_price") or 0.0))


def day_of(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def add_usage(session: Session, owner: str, at: float, **amounts: float) -> None:
    """Add to what an owner used in the day of `at`: `core_seconds`, `tokens`, `requests` and the other columns."""
    row = session.get(UsageDay, (owner, day_of(at)))
    if row is None:
        row = UsageDay(owner=owner, day=day_of(at), **dict.fromkeys(COUNTS, 0))
        session.add(row)
    for name, amount in amounts.items():
        setattr(row, name, getattr(row, name) + amount)


def charge(session: Session, run: RunRow, attempt: AttemptRow, until: float, tokens: int | None = None) -> None:
    """Charge an attempt's use up to `until`, each part to its day; `tokens` is the run's total so far."""
    runner = session.get(RunnerRow, attempt.runner_id)
    prices = prices_of(runner.capacity) if runner is not None else Prices()
    needs = Amount.of(run.needs)
    begin, until = attempt.charged_until, max(until, attempt.charged_until)
    accounts = Waiting(run.id, run.owner, 0, 0.0, needs, run.user).accounts
    for account in accounts:
        quota = quota_of(session, account, until)
        quota.decayed = decayed(quota.decayed, quota.decayed_at, until) + prices.share(needs, until - begin)
        quota.decayed_at = max(quota.decayed_at, until)
    while begin < until:
        end = min(until, (begin // DAY_S + 1) * DAY_S)
        seconds = end - begin
        cost = prices.cost(needs, seconds)
        amounts = {"core_seconds": needs.cores * seconds, "device_seconds": needs.devices * seconds, "cost": cost}
        for account in accounts:
            add_usage(session, account, begin, run_seconds=seconds, **amounts)
        run.seconds, run.cost = run.seconds + seconds, run.cost + cost
        begin = end
    attempt.charged_until = until
    if tokens is not None and tokens > run.tokens:
        for account in accounts:
            add_usage(session, account, until, tokens=tokens - run.tokens)
        run.tokens = tokens


def quota_of(session: Session, owner: str, now: float) -> Quota:
    """The limits and the decayed usage of an owner; a new row has no limits."""
    row = session.get(Quota, owner)
    if row is None:
        limits = dict.fromkeys(("running", "queued", "seconds", "tokens", "cost"))
        row = Quota(owner=owner, **limits, decayed=0.0, decayed_at=now)
        session.add(row)
    return row


@dataclass(frozen=True, slots=True)
class Month:
    """What an owner used in the calendar month of a moment; of a user also what its runs for others did."""

    seconds: float
    tokens: int
    cost: float


def month_of(session: Session, owner: str, now: float) -> Month:
    query = select(func.sum(UsageDay.run_seconds), func.sum(UsageDay.tokens), func.sum(UsageDay.cost))
    query = query.where(UsageDay.owner.in_((owner, elsewhere(owner))))
    sums = session.execute(query.where(UsageDay.day.like(day_of(now)[:7] + "%"))).one()
    return Month(float(sums[0] or 0.0), int(sums[1] or 0), float(sums[2] or 0.0))


def exhausted(session: Session, owner: str, user: str, now: float) -> str:
    """Which limit of the month an owner, or the user of its run, has reached, in words; empty if none."""
    return next(filter(None, (_exhausted(session, name, now) for name in dict.fromkeys((owner, user)))), "")


def _exhausted(session: Session, owner: str, now: float) -> str:
    quota = session.get(Quota, owner)
    if quota is None or (quota.seconds is None and quota.tokens is None and quota.cost is None):
        return ""
    month = month_of(session, owner, now)
    if quota.seconds is not None and month.seconds >= quota.seconds:
        return f"{owner} has used its {quota.seconds:g} seconds of this month"
    if quota.tokens is not None and month.tokens >= quota.tokens:
        return f"{owner} has used its {quota.tokens:,} tokens of this month"
    if quota.cost is not None and month.cost >= quota.cost:
        return f"{owner} has used its {quota.cost:g} of this month's cost"
    return ""


def over_cap(run: RunRow) -> str:
    """Which cap a run has reached, in words; empty if none."""
    seconds, tokens, cost = (run.caps.get(name) for name in ("seconds", "tokens", "cost"))
    if seconds is not None and run.seconds >= seconds:
        return f"its cap of {seconds:g} seconds was reached"
    if tokens is not None and run.tokens >= tokens:
        return f"its cap of {tokens:,} tokens was reached"
    if cost is not None and run.cost >= cost:
        return f"its cap of {cost:g} in cost was reached"
    return ""


def shares_of(session: Session, names: Iterable[str], now: float) -> dict[str, Share]:
    """The decayed usage of each owner and user with what its runs in progress use, and how many those are."""
    wanted = {account for name in names for account in (name, elsewhere(name))}
    shares = {name: Share() for name in wanted}
    for quota in session.scalars(select(Quota).where(Quota.owner.in_(wanted))):
        shares[quota.owner] = Share(decayed(quota.decayed, quota.decayed_at, now))
    query = select(RunRow.owner, RunRow.user, RunRow.needs, AttemptRow.charged_until)
    query = query.join(AttemptRow, AttemptRow.run_id == RunRow.id)
    for owner, user, needs, charged in session.execute(query.where(AttemptRow.state.in_(IN_PROGRESS))):
        amount = Amount.of(needs)
        for account in Waiting("", owner, 0, 0.0, amount, user).accounts:
            if account in wanted:
                shares[account] += Share(Prices().share(amount, max(0.0, now - charged) + AHEAD_S), 1)
    return shares
