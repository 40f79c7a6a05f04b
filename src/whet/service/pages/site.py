"""The service as a whole: its runners, and the audit log."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from sqlalchemy import Select, select
from sqlalchemy.orm import Session
from starlette.responses import Response

from whet.dashboard.pages.rendering import PageRoute, address, render
from whet.display.page.formats import size
from whet.hub import policy
from whet.hub.answers import AuditAnswer
from whet.hub.api.call import action
from whet.hub.domain.access import Caller, owner_for, permit
from whet.hub.domain.audit import verify
from whet.hub.pages.routes import PageCall
from whet.hub.policy import Role
from whet.hub.storage.tables import AuditEntry
from whet.service.api.owners import runner_views
from whet.service.domain.access import RUNNERS
from whet.service.pages.forms import owners_of, viewer_in

router = APIRouter(route_class=PageRoute)
ENTRIES = 100


@router.get("/runners")
@action(RUNNERS)
def runners_page(request: Request, call: PageCall) -> Response:
    with call.read() as (session, caller):
        permit(caller)
        runners = runner_views(session)
    shown = [{**one.model_dump(), "has": amounts(one.capacity), "left": amounts(one.free or {})} for one in runners]
    return render(request, "runners.html", runners=shown)


def amounts(capacity: dict[str, Any]) -> str:
    """`4 cores, 16.0 GB, 1 device`."""
    cores, devices = capacity.get("cores"), capacity.get("devices") or 0
    parts = [
        f"{cores:g} {'core' if cores == 1 else 'cores'}" if cores is not None else "",
        size(capacity["memory"]) if capacity.get("memory") is not None else "",
        f"{devices:g} {'device' if devices == 1 else 'devices'}" if devices else "",
    ]
    return ", ".join(filter(None, parts))


@router.get("/audit")
@action(policy.SEE_AUDIT)
def audit_page(
    request: Request,
    call: PageCall,
    owner: str = "",
    before: Annotated[int | None, Query(ge=1, le=10**15)] = None,
    verified: bool = False,
) -> Response:
    """The newest entries first: of an owner, or for administrators of everything."""
    viewer = viewer_in(request)
    with call.read() as (session, caller):
        query = _entries(session, caller, owner, whole=viewer.is_admin and not owner)
        if before is not None:
            query = query.where(AuditEntry.number < before)
        rows = list(session.scalars(query.order_by(AuditEntry.number.desc()).limit(ENTRIES + 1)))
        chain = verify(session) if verified and viewer.is_admin else None
    more = address("/audit", {"owner": owner, "before": rows[ENTRIES - 1].number}) if len(rows) > ENTRIES else ""
    return render(
        request,
        "audit.html",
        entries=[AuditAnswer.model_validate(row) for row in rows[:ENTRIES]],
        owner=owner or ("" if viewer.is_admin else viewer.name),
        owners=owners_of(viewer, Role.OWNER),
        is_admin=viewer.is_admin,
        chain=chain,
        more=more,
    )


def _entries(session: Session, caller: Caller, owner: str, *, whole: bool) -> Select[AuditEntry]:
    """The entries that the caller asks for. Raises `HubError` for those it may not read."""
    if whole:
        permit(Caller(policy.AUDIT, caller.token))
        return select(AuditEntry)
    owner = owner or caller.name
    owner_for(session, caller, owner)
    return select(AuditEntry).where(AuditEntry.owner == owner)
