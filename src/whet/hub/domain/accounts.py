"""Users, organisations, members and tokens."""

from __future__ import annotations

import secrets

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from whet.errors import ConfigError
from whet.hub.answers import (
    Identity,
    MemberAnswer,
    MembershipAnswer,
    NewTokenAnswer,
    NewUserAnswer,
    OrganisationAnswer,
    OwnToken,
    TokenAnswer,
)
from whet.hub.archive.names import check_owner_name
from whet.hub.domain.access import PREFIX, Caller, digest_of, find_account, owner_for, permit
from whet.hub.domain.audit import record
from whet.hub.errors import HubError, not_found
from whet.hub.policy import Role, Scope
from whet.hub.storage.database import INDEX_CHANGED
from whet.hub.storage.tables import Account, Membership, TokenRow

DAY_S = 86_400.0
SESSION_S = 12 * 3600.0
MAX_TOKENS = 200


def bump(session: Session) -> None:
    """What an index page shows, or to which callers, has changed."""
    session.info[INDEX_CHANGED] = True


def add_account(session: Session, name: str, kind: str, actor: str, now: float, *, is_admin: bool = False) -> Account:
    """A new user or organisation. Raises `HubError`; a name is never used again."""
    try:
        check_owner_name(name)
    except ConfigError as error:
        raise HubError("invalid", str(error)) from None
    if find_account(session, name) is not None:
        raise HubError("name_taken", f"the name '{name}' is taken. Choose another.")
    account = Account(name=name, kind=kind, is_admin=is_admin, created_at=now)
    session.add(account)
    session.flush()
    record(session, actor, f"{kind}.create", name, name, now, {"is_admin": is_admin})
    return account


def issue(
    session: Session,
    user: Account,
    name: str,
    scope: Scope,
    lifetime_s: float,
    now: float,
    *,
    kind: str = "token",
    parent: TokenRow | None = None,
) -> tuple[TokenRow, str]:
    """A new token and its text, which is not kept."""
    alive = select(func.count()).select_from(TokenRow).where(TokenRow.user_id == user.id, TokenRow.revoked_at.is_(None))
    if int(session.scalar(alive.where(TokenRow.expires_at > now)) or 0) >= MAX_TOKENS:
        raise HubError("too_many", f"{user.name} has {MAX_TOKENS} tokens. Revoke some first.")
    text = PREFIX + secrets.token_urlsafe(32)
    row = TokenRow(
        id=secrets.token_hex(8),
        digest=digest_of(text),
        user_id=user.id,
        name=name,
        scope=int(scope),
        kind=kind,
        parent_id=parent.id if parent is not None else None,
        created_at=now,
        expires_at=now + lifetime_s,
    )
    session.add(row)
    session.flush()
    detail = {"name": name, "scope": scope.name.lower(), "kind": kind}
    record(session, user.name, "token.create", user.name, row.id, now, detail)
    return row, text


def add_user(session: Session, caller: Caller, name: str, is_admin: bool, now: float) -> NewUserAnswer:
    """A new user with a first token: scope admin, valid for 90 days. Raises `HubError` for a name that is taken."""
    permit(caller)
    user = add_account(session, name, "user", caller.name, now, is_admin=is_admin)
    _, text = issue(session, user, "first token", Scope.ADMIN, 90 * DAY_S, now)
    return NewUserAnswer(name=user.name, is_admin=user.is_admin, token=text)


def disable_user(session: Session, caller: Caller, name: str, now: float) -> None:
    """The user's tokens end at once; what was pushed stays."""
    permit(caller)
    user = find_account(session, name, "user")
    if user is None or user.disabled_at is not None:
        raise not_found(f"user {name}")
    if user.id == caller.known.id:
        raise HubError("conflict", "you cannot disable your own account. Another administrator has to.")
    user.disabled_at = now
    revoke_all(session, user, now)
    record(session, caller.name, "user.disable", name, name, now)


def revoke_all(session: Session, user: Account, now: float) -> None:
    """End all tokens of a user, at `now` in seconds since 1970."""
    alive = TokenRow.user_id == user.id, TokenRow.revoked_at.is_(None)
    session.execute(update(TokenRow).where(*alive).values(revoked_at=now))
    bump(session)


def add_token(session: Session, caller: Caller, name: str, scope: Scope, days: int, now: float) -> NewTokenAnswer:
    """A further token of the caller, valid for `days`. Raises `HubError` for a scope above the caller's."""
    permit(caller)
    if scope > caller.known_token.scope:
        raise HubError("forbidden", f"this token's scope is below '{scope.name.lower()}'.")
    row, text = issue(session, caller.known, name, scope, days * DAY_S, now)
    return NewTokenAnswer(**TokenAnswer.model_validate(row).model_dump(), token=text)


def revoke_token(session: Session, caller: Caller, token_id: str, now: float) -> None:
    """A token of the caller, and the sessions that were made with it, end at once."""
    permit(caller)
    row = session.get(TokenRow, token_id)
    if row is None or row.user_id != caller.known.id or row.revoked_at is not None:
        raise not_found(f"token {token_id}")
    session.execute(
        update(TokenRow).where((TokenRow.id == token_id) | (TokenRow.parent_id == token_id)).values(revoked_at=now)
    )
    bump(session)
    record(session, caller.name, "token.revoke", caller.name, token_id, now)


def tokens_of(session: Session, caller: Caller, now: float) -> list[TokenAnswer]:
    """The caller's tokens that are valid at `now`, the oldest first; sessions of browsers are not among them."""
    permit(caller)
    query = select(TokenRow).where(
        TokenRow.user_id == caller.known.id, TokenRow.revoked_at.is_(None), TokenRow.expires_at > now
    )
    rows = session.scalars(query.where(TokenRow.kind == "token").order_by(TokenRow.created_at))
    return [TokenAnswer.model_validate(row) for row in rows]


def whoami(session: Session, caller: Caller) -> Identity:
    """The caller: name, scope, token, and roles in namespaces, the caller's own first."""
    permit(caller)
    query = select(Account.name, Membership.role).join(Membership, Membership.owner_id == Account.id)
    memberships = session.execute(query.where(Membership.user_id == caller.known.id).order_by(Account.name))
    roles = [MembershipAnswer(owner=name, role=role) for name, role in memberships]
    return Identity(
        user=caller.name,
        is_admin=caller.known.is_admin,
        scope=caller.known_token.scope,
        token=OwnToken.model_validate(caller.known_token),
        owners=[MembershipAnswer(owner=caller.name, role="owner"), *roles],
    )


def add_organisation(session: Session, caller: Caller, name: str, now: float) -> OrganisationAnswer:
    """A new organisation, which the caller owns. Raises `HubError` for a name that is taken."""
    permit(caller)
    organisation = add_account(session, name, "organisation", caller.name, now)
    session.add(Membership(owner_id=organisation.id, user_id=caller.known.id, role=int(Role.OWNER)))
    return OrganisationAnswer(name=name, kind="organisation")


def members_of(session: Session, caller: Caller, owner: str) -> list[MemberAnswer]:
    """The members of an organisation with their roles, by name. Raises `HubError` where the caller may not see them."""
    organisation = owner_for(session, caller, owner, "organisation")
    query = select(Account.name, Membership.role).join(Membership, Membership.user_id == Account.id)
    members = session.execute(query.where(Membership.owner_id == organisation.id).order_by(Account.name))
    return [MemberAnswer(user=name, role=role) for name, role in members]


def set_member(session: Session, caller: Caller, owner: str, user: str, role: Role, now: float) -> MemberAnswer:
    """Make a user a member, or change the role of one. Raises `HubError` for an unknown user, and where no owner would
    be left."""
    organisation = owner_for(session, caller, owner, "organisation")
    account = find_account(session, user, "user")
    if account is None or account.disabled_at is not None:
        raise not_found(f"user {user}")
    row = session.get(Membership, (organisation.id, account.id))
    if row is None:
        row = Membership(owner_id=organisation.id, user_id=account.id, role=int(role))
        session.add(row)
    elif row.role == Role.OWNER and role != Role.OWNER:
        _keep_an_owner(session, organisation)
    row.role = int(role)
    bump(session)
    record(session, caller.name, "member.set", owner, user, now, {"role": role.name.lower()})
    return MemberAnswer(user=user, role=role)


def remove_member(session: Session, caller: Caller, owner: str, user: str, now: float) -> None:
    """End a membership at once. Raises `HubError` where there is none, and where no owner would be left."""
    organisation = owner_for(session, caller, owner, "organisation")
    account = find_account(session, user, "user")
    row = session.get(Membership, (organisation.id, account.id)) if account is not None else None
    if row is None:
        raise not_found(f"member {user} of {owner}")
    if row.role == Role.OWNER:
        _keep_an_owner(session, organisation)
    session.execute(delete(Membership).where(Membership.owner_id == row.owner_id, Membership.user_id == row.user_id))
    bump(session)
    record(session, caller.name, "member.remove", owner, user, now)


def _keep_an_owner(session: Session, organisation: Account) -> None:
    query = select(func.count()).select_from(Membership).where(Membership.owner_id == organisation.id)
    if int(session.scalar(query.where(Membership.role == int(Role.OWNER))) or 0) < 2:
        raise HubError("conflict", f"{organisation.name} needs an owner. Make another member 'owner' first.")
