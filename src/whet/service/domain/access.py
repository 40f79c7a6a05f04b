"""What each route of the service needs, and which runs a user sees: the hub's policy applied to the service's rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from whet.hub.domain.access import Caller, find_account, permit, role_in
from whet.hub.errors import HubError
from whet.hub.policy import SELF, Action, Role, Scope
from whet.hub.storage.tables import Account, Membership
from whet.service.storage.tables import RunRow

SEE = Action("see runs", Scope.READ, Role.VIEWER)
RUN = Action("submit, stop, restart or delete runs", Scope.PUSH, Role.MEMBER)
RUN_OF_OTHERS = Action("stop, restart or delete runs of others", Scope.PUSH, Role.MAINTAINER)
SECRETS = Action("see or change secrets", Scope.PUSH, Role.MAINTAINER)
UPLOAD = Action("upload files of submissions", Scope.PUSH)
QUOTAS = Action("change quotas", Scope.ADMIN, site=True)
SEE_QUOTAS = Action("see a quota", Scope.READ, Role.VIEWER, site_too=True)
RUNNERS = Action("see runners", Scope.ADMIN, site=True)


@dataclass(frozen=True, slots=True)
class RequestUser:
    """A user, by the rights of its token (its id): the role in each owner's namespace that it has one in."""

    name: str
    token: str
    roles: Mapping[str, Role]
    scope: Scope
    is_admin: bool = False

    def sees(self, owner: str) -> bool:
        return self.roles.get(owner, Role.NONE) >= Role.VIEWER

    def may_change(self, owner: str, user: str) -> bool:
        """Whether it may stop, restart and delete a run of `user`."""
        least = Role.MEMBER if user == self.name else Role.MAINTAINER
        return self.scope >= Scope.PUSH and self.roles.get(owner, Role.NONE) >= least


def viewer_of(session: Session, caller: Caller) -> RequestUser:
    """The caller with all of its roles. Raises `HubError` for a request without a token."""
    permit(Caller(SELF, caller.token))
    user = caller.known
    query = select(Account.name, Membership.role).join(Membership, Membership.owner_id == Account.id)
    roles = {name: Role(role) for name, role in session.execute(query.where(Membership.user_id == user.id))}
    roles[user.name] = Role.OWNER
    return RequestUser(user.name, caller.known_token.id, roles, caller.subject.scope or Scope.READ, user.is_admin)


def run_for(session: Session, caller: Caller, run: str) -> RunRow:
    """A run that the caller may do its action with. Raises `HubError`, 404 for what it may not see."""
    row = session.get(RunRow, run)
    owner = find_account(session, row.owner) if row is not None else None
    role = role_in(session, caller, owner)
    permit(caller, role, visible=False, what=f"run {run}")
    assert row is not None, "without a run there is no role"
    if row.deleted_at is not None:
        raise HubError("deleted", f"run {run} was deleted.")
    if caller.action == RUN and row.user != caller.name:
        permit(Caller(RUN_OF_OTHERS, caller.token), role, visible=False, what=f"run {run}")
    return row
