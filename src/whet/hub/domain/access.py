"""Which user a request is from, and what that user sees: tokens, roles, and `policy.decide` applied to rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session

from whet.hub.errors import HubError, not_found
from whet.hub.policy import Action, Requester, Role, Scope, decide
from whet.hub.storage.tables import Account, EnvironmentRow, Membership, TokenRow, Version

PREFIX = "whet_"


@dataclass(frozen=True, slots=True)
class Caller:
    """The user of a request, if it had a token, and the action that its route declares."""

    action: Action
    token: TokenRow | None = None

    @property
    def user(self) -> Account | None:
        """The account of the token; None without one."""
        return self.token.user if self.token is not None else None

    @property
    def name(self) -> str:
        """The name of the user; empty without a token."""
        return self.token.user.name if self.token is not None else ""

    @property
    def known_token(self) -> TokenRow:
        """The token, on routes that no request without one reaches."""
        assert self.token is not None
        return self.token

    @property
    def known(self) -> Account:
        """The user, on the same routes."""
        return self.known_token.user

    @property
    def subject(self) -> Requester:
        """What `policy.decide` is given: the scope of the token, and whether its user is an administrator."""
        if self.token is None:
            return Requester()
        return Requester(Scope(self.token.scope), self.token.user.is_admin)


def digest_of(token: str) -> str:
    """The SHA-256 of a token in hex digits: all that the database keeps of it."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def identify(session: Session, token: str | None, action: Action, now: float, kind: str = "token") -> Caller:
    """The caller. Raises `HubError` for a token that is not valid: it is never served as a request without one."""
    if token is None:
        return Caller(action)
    row = session.scalar(select(TokenRow).where(TokenRow.digest == digest_of(token), TokenRow.kind == kind))
    what = "is not known to this hub"
    if row is not None:
        what = "has expired" if row.expires_at <= now else "was revoked" if row.revoked_at else ""
        what = what or ("is of a disabled user" if row.user.disabled_at else "")
        if not what:
            return Caller(action, row)
    raise HubError("unauthenticated", f"the token {what}. Log in again with: whet login")


def permit(caller: Caller, role: Role = Role.NONE, *, visible: bool = True, what: str = "page") -> None:
    """Raises `HubError` unless the caller may do its action; `what` names what is concerned."""
    verdict, missing = decide(caller.subject, caller.action, role, visible=visible)
    if verdict == "unauthenticated":
        raise HubError("unauthenticated", "this needs a token. Log in with: whet login")
    if verdict == "hidden":
        raise not_found(what)
    if verdict == "forbidden":
        raise HubError("forbidden", f"{missing}.")


def role_in(session: Session, caller: Caller, owner: Account | None) -> Role:
    """The caller's role in a namespace."""
    if owner is None or caller.user is None:
        return Role.NONE
    if caller.user.id == owner.id:
        return Role.OWNER
    membership = session.get(Membership, (owner.id, caller.user.id))
    return Role(membership.role) if membership is not None else Role.NONE


def find_account(session: Session, name: str, kind: str | None = None) -> Account | None:
    """The account of a name, of any kind or of `kind` ("user", "organisation"); None where there is none."""
    query = select(Account).where(Account.name == name)
    return session.scalar(query if kind is None else query.where(Account.kind == kind))


def owner_for(session: Session, caller: Caller, name: str, kind: str | None = None, what: str | None = None) -> Account:
    """The owner of that name (of any kind, or of `kind`), if the caller may do its action there.

    Raises `HubError`, 404 for what it may not see; `what` names that, by default the owner.
    """
    owner = find_account(session, name, kind)
    what = what or f"{kind or 'owner'} {name}"
    permit(caller, role_in(session, caller, owner), visible=False, what=what)
    if owner is None:
        raise not_found(what)
    return owner


def environment_for(session: Session, caller: Caller, owner: str, name: str) -> EnvironmentRow:
    """An environment that the caller may do its action with. Raises `HubError`, 404 for what it may not see."""
    what = f"environment {owner}/{name}"
    query = select(EnvironmentRow).join(EnvironmentRow.owner).where(Account.name == owner, EnvironmentRow.name == name)
    row = session.scalar(query)
    if row is None:
        permit(caller, visible=False, what=what)
        raise not_found(what)
    permit(caller, role_in(session, caller, row.owner), visible=row.visibility == "PUBLIC", what=what)
    if row.deleted_at is not None:
        raise HubError("deleted", f"{owner}/{name} was deleted.")
    return row


def version_for(session: Session, caller: Caller, owner: str, name: str, version: str) -> Version:
    """A version of an environment that the caller may do its action with."""
    environment = environment_for(session, caller, owner, name)
    query = select(Version).where(Version.environment_id == environment.id, Version.version == version)
    row = session.scalar(query)
    if row is None:
        raise not_found(f"version {owner}/{name}@{version}")
    if row.deleted_at is not None:
        raise HubError("deleted", f"{owner}/{name}@{version} was deleted.")
    return row


def seen_by(session: Session, caller: Caller) -> ColumnElement[bool]:
    """The condition for environments that the caller may read."""
    public = EnvironmentRow.visibility == "PUBLIC"
    if caller.user is None:
        return public
    organisations = select(Membership.owner_id).where(Membership.user_id == caller.user.id)
    own = EnvironmentRow.owner_id == caller.user.id
    return or_(public, own, EnvironmentRow.owner_id.in_(organisations))
