"""Routes of users, organisations, tokens, logins with a code, and the audit log."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import Field
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from whet import __version__
from whet.hub import answers, policy
from whet.hub.api.call import CallParameter, Identity, ListRange, Owner, PartOfList, RequestBody, Words, action
from whet.hub.domain import accounts, audit, devices
from whet.hub.domain.access import owner_for, permit
from whet.hub.errors import HubError
from whet.hub.policy import Role, Scope
from whet.hub.storage.tables import Account, AuditEntry

router = APIRouter(prefix="/api/v1")
ScopeName = Literal["read", "push", "admin"]
RoleName = Literal["viewer", "member", "maintainer", "owner"]
ShortWords = Annotated[Words, Field(min_length=1, max_length=100)]


class NewToken(RequestBody):
    name: ShortWords
    scope: ScopeName = "read"
    days: int = Field(90, ge=1, le=366)


class NewUser(RequestBody):
    name: Words = Field(max_length=100)
    is_admin: bool = False


class NewOrganisation(RequestBody):
    name: Words = Field(max_length=100)


class Member(RequestBody):
    role: RoleName


class NewDevice(RequestBody):
    client: ShortWords
    scope: ScopeName = "push"


class DeviceToken(RequestBody):
    device_code: Words = Field(max_length=200)


class Approval(RequestBody):
    user_code: Words = Field(max_length=20)
    approve: bool


@router.get("/health")
@action(policy.SERVICE)
def health(call: CallParameter) -> answers.Health:
    with call.read():
        return answers.Health(status="ok", version=__version__)


@router.get("/whoami")
@action(policy.SELF)
def whoami(call: CallParameter) -> answers.Identity:
    with call.read() as (session, caller):
        return accounts.whoami(session, caller)


@router.get("/tokens")
@action(policy.TOKENS)
def list_tokens(call: CallParameter, part: PartOfList) -> answers.Page[answers.TokenAnswer]:
    with call.read() as (session, caller):
        return part.of(accounts.tokens_of(session, caller, call.hub.clock()))


@router.post("/tokens", status_code=201)
@action(policy.TOKENS)
def add_token(call: CallParameter, body: NewToken) -> answers.NewTokenAnswer:
    with call.write() as (session, caller):
        return accounts.add_token(session, caller, body.name, Scope[body.scope.upper()], body.days, call.hub.clock())


@router.delete("/tokens/current", status_code=204)
@action(policy.SELF)
def revoke_current_token(call: CallParameter) -> None:
    with call.write() as (session, caller):
        accounts.revoke_token(session, caller, caller.known_token.id, call.hub.clock())


@router.delete("/tokens/{token}", status_code=204)
@action(policy.TOKENS)
def revoke_token(call: CallParameter, token: Identity) -> None:
    with call.write() as (session, caller):
        accounts.revoke_token(session, caller, token, call.hub.clock())


@router.get("/users")
@action(policy.USERS)
def list_users(call: CallParameter, part: PartOfList) -> answers.Page[answers.UserAnswer]:
    with call.read() as (session, caller):
        permit(caller)
        rows = session.scalars(select(Account).where(Account.kind == "user").order_by(Account.name))
        return part.of([answers.UserAnswer.model_validate(row) for row in rows])


@router.post("/users", status_code=201)
@action(policy.USERS)
def add_user(call: CallParameter, body: NewUser) -> answers.NewUserAnswer:
    with call.write() as (session, caller):
        return accounts.add_user(session, caller, body.name, body.is_admin, call.hub.clock())


@router.delete("/users/{user}", status_code=204)
@action(policy.USERS)
def disable_user(call: CallParameter, user: Owner) -> None:
    with call.write() as (session, caller):
        accounts.disable_user(session, caller, user, call.hub.clock())


@router.post("/organisations", status_code=201)
@action(policy.ORGANISATIONS)
def add_organisation(call: CallParameter, body: NewOrganisation) -> answers.OrganisationAnswer:
    with call.write() as (session, caller):
        return accounts.add_organisation(session, caller, body.name, call.hub.clock())


@router.get("/owners/{owner}/members")
@action(policy.SEE_MEMBERS)
def list_members(call: CallParameter, part: PartOfList, owner: Owner) -> answers.Page[answers.MemberAnswer]:
    with call.read() as (session, caller):
        return part.of(accounts.members_of(session, caller, owner))


@router.put("/owners/{owner}/members/{user}")
@action(policy.MEMBERS)
def set_member(call: CallParameter, owner: Owner, user: Owner, body: Member) -> answers.MemberAnswer:
    with call.write() as (session, caller):
        return accounts.set_member(session, caller, owner, user, Role[body.role.upper()], call.hub.clock())


@router.delete("/owners/{owner}/members/{user}", status_code=204)
@action(policy.MEMBERS)
def remove_member(call: CallParameter, owner: Owner, user: Owner) -> None:
    with call.write() as (session, caller):
        accounts.remove_member(session, caller, owner, user, call.hub.clock())


@router.get("/audit")
@action(policy.AUDIT)
def audit_log(call: CallParameter, part: PartOfList) -> answers.Page[answers.AuditAnswer]:
    with call.read() as (session, caller):
        permit(caller)
        return _entries(session, part)


@router.get("/owners/{owner}/audit")
@action(policy.SEE_AUDIT)
def audit_log_of_owner(call: CallParameter, part: PartOfList, owner: Owner) -> answers.Page[answers.AuditAnswer]:
    with call.read() as (session, caller):
        owner_for(session, caller, owner)
        return _entries(session, part, AuditEntry.owner == owner)


def _entries(session: Session, part: ListRange, *conditions: ColumnElement[bool]) -> answers.Page[answers.AuditAnswer]:
    query = select(AuditEntry).where(AuditEntry.number > part.cursor, *conditions).order_by(AuditEntry.number)
    rows = [answers.AuditAnswer.model_validate(row) for row in session.scalars(query.limit(part.limit + 1))]
    following = str(rows[part.limit - 1].number) if len(rows) > part.limit else None
    return answers.Page(items=rows[: part.limit], next=following)


@router.get("/audit/verification")
@action(policy.AUDIT)
def audit_verification(call: CallParameter) -> answers.AuditVerification:
    with call.read() as (session, caller):
        permit(caller)
        entries, broken = audit.verify(session)
        return answers.AuditVerification(intact=broken is None, entries=entries, first_broken=broken)


@router.post("/device/code")
@action(policy.SERVICE)
def device_code(call: CallParameter, body: NewDevice) -> answers.DeviceCodeAnswer:
    with call.write() as (session, _):
        scope = Scope[body.scope.upper()]
        return devices.begin(session, call.sender, body.client, scope, call.base, call.hub.clock())


@router.post("/device/token")
@action(policy.SERVICE)
def device_token(call: CallParameter, body: DeviceToken, response: Response) -> answers.LoginAnswer:
    with call.write() as (session, _):
        outcome = devices.collect(session, call.sender, body.device_code, call.hub.clock())
    if isinstance(outcome, HubError):
        raise outcome
    response.headers["Cache-Control"] = "no-store"
    return outcome


@router.post("/device/approval")
@action(policy.SELF)
def device_approval(call: CallParameter, body: Approval) -> answers.DecisionAnswer:
    with call.write() as (session, caller):
        return devices.decide(session, call.sender, caller, body.user_code, body.approve, call.hub.clock())
