"""Routes of owners: secrets, usage, quotas; of runners; and of what the service has."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from whet import __version__
from whet.hub.answers import Page, SecretAnswer
from whet.hub.api.call import CallParameter, Owner, PartOfList, RequestBody, action
from whet.hub.domain.access import owner_for, permit
from whet.hub.domain.audit import record
from whet.hub.policy import SELF
from whet.hub.storage.database import database_now
from whet.service.answers import RunnerAnswer, ServiceAnswer
from whet.service.api.runs import OwnerName, SecretText, installed_environments, known_models
from whet.service.domain import secrets
from whet.service.domain.access import QUOTAS, RUNNERS, SECRETS, SEE, SEE_QUOTAS
from whet.service.domain.fairness import decayed
from whet.service.domain.runners import places, runner_view
from whet.service.domain.usage import COUNTS, month_of, quota_of
from whet.service.service import service_of
from whet.service.storage.tables import Quota, RunnerRow, UsageDay
from whet.service.training_api import training_api_of

router = APIRouter()
Json = dict[str, Any]
SecretName = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
OwnerQuery = Annotated[OwnerName, Query()]
DAYS = 62


class SecretBody(RequestBody):
    value: SecretText


class QuotaBody(RequestBody):
    """Limits of an owner; null where there is none."""

    model_config = ConfigDict(from_attributes=True)

    running: int | None = Field(None, ge=0, le=10**6)
    queued: int | None = Field(None, ge=0, le=10**6)
    seconds: float | None = Field(None, ge=0, le=10**12, allow_inf_nan=False)
    tokens: int | None = Field(None, ge=0, le=10**15)
    cost: float | None = Field(None, ge=0, le=10**12, allow_inf_nan=False)


@router.get("/service")
@action(SELF)
def about(call: CallParameter) -> ServiceAnswer:
    """What the service has, for clients that prepare a submission."""
    with call.read() as (session, caller):
        permit(caller)
        machines = places(session, database_now(session))
    largest = max(machines, key=lambda machine: (machine.capacity.devices, machine.capacity.cores), default=None)
    amount = largest.capacity if largest is not None else None
    free = max((machine.free.cores for machine in machines), default=None)
    return ServiceAnswer(
        version=__version__,
        environments=list(installed_environments().values()),
        models=known_models(),
        free_cores=free,
        largest=None if amount is None else asdict(amount),
        training_api=training_api_of(service_of(call.request).data),
    )


@router.get("/secrets")
@action(SECRETS)
def list_secrets(call: CallParameter, part: PartOfList, owner: OwnerQuery) -> Page[SecretAnswer]:
    with call.read() as (session, caller):
        rows = secrets.owner_secrets(session, owner_for(session, caller, owner).name)
        return part.of([SecretAnswer.model_validate(row) for row in rows])


@router.put("/secrets/{owner}/{name}")
@action(SECRETS)
def set_secret(call: CallParameter, owner: Owner, name: SecretName, body: SecretBody) -> SecretAnswer:
    with call.write() as (session, caller):
        owner_for(session, caller, owner)
        now = database_now(session)
        row = secrets.set_owner_secret(session, call.hub.cipher, caller.name, owner, name, body.value, now)
        return SecretAnswer.model_validate(row)


@router.delete("/secrets/{owner}/{name}", status_code=204)
@action(SECRETS)
def delete_secret(call: CallParameter, owner: Owner, name: SecretName) -> None:
    with call.write() as (session, caller):
        owner_for(session, caller, owner)
        secrets.delete_owner_secret(session, caller.name, owner, name, database_now(session))


@router.get("/usage")
@action(SEE)
def usage(call: CallParameter, owner: OwnerQuery) -> Json:
    """What an owner used: decayed (which decides whose run is next), this month, and by day, newest first."""
    with call.read() as (session, caller):
        owner_for(session, caller, owner)
        now = database_now(session)
        quota = session.get(Quota, owner)
        month = month_of(session, owner, now)
        query = select(UsageDay).where(UsageDay.owner == owner).order_by(UsageDay.day.desc()).limit(DAYS)
        days = [{"day": row.day, **{name: getattr(row, name) for name in COUNTS}} for row in session.scalars(query)]
    return {
        "owner": owner,
        "decayed": 0.0 if quota is None else decayed(quota.decayed, quota.decayed_at, now),
        "month": {"seconds": month.seconds, "tokens": month.tokens, "cost": month.cost},
        "quota": _limits(quota),
        "days": days,
    }


def _limits(quota: Quota | None) -> QuotaBody:
    return QuotaBody() if quota is None else QuotaBody.model_validate(quota)


@router.get("/quotas/{owner}")
@action(SEE_QUOTAS)
def get_quota(call: CallParameter, owner: Owner) -> QuotaBody:
    with call.read() as (session, caller):
        owner_for(session, caller, owner)
        return _limits(session.get(Quota, owner))


@router.put("/quotas/{owner}")
@action(QUOTAS)
def set_quota(call: CallParameter, owner: Owner, body: QuotaBody) -> QuotaBody:
    with call.write() as (session, caller):
        owner_for(session, caller, owner)
        now = database_now(session)
        quota = quota_of(session, owner, now)
        for name, limit in body:
            setattr(quota, name, limit)
        record(session, caller.name, "quota.set", owner, owner, now, body.model_dump())
        return _limits(quota)


@router.get("/runners")
@action(RUNNERS)
def list_runners(call: CallParameter, part: PartOfList) -> Page[RunnerAnswer]:
    with call.read() as (session, caller):
        permit(caller)
        return part.of(runner_views(session))


def runner_views(session: Session) -> list[RunnerAnswer]:
    """The newest first."""
    now = database_now(session)
    here = {capacity.runner: capacity for capacity in places(session, now)}
    rows = session.scalars(select(RunnerRow).order_by(RunnerRow.started_at.desc(), RunnerRow.id).limit(1000))
    return [runner_view(row, here.get(row.id), now) for row in rows]
