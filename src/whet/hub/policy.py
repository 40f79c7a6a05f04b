"""Who may do what: one pure function, which every route of the hub calls through its action.

Nothing here knows of requests or tables. The caller passes the requester, its role, and whether the object of the
action is public.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal


class Scope(IntEnum):
    """What a token is for; each includes those before it."""

    READ = 1
    PUSH = 2
    ADMIN = 3


class Role(IntEnum):
    """What a user is in an owner's namespace; each may do what those before it may."""

    NONE = 0
    VIEWER = 1
    MEMBER = 2
    MAINTAINER = 3
    OWNER = 4


@dataclass(frozen=True, slots=True)
class Action:
    """What a route does: the least scope and role, and whether a hub administrator needs no role for it."""

    name: str
    scope: Scope
    role: Role = Role.NONE
    anonymous: bool = False  # no token is needed
    site: bool = False  # a hub administrator alone
    site_too: bool = False  # a hub administrator, or the role


SERVICE = Action("use the hub", Scope.READ, anonymous=True)
READ = Action("read", Scope.READ, anonymous=True)
SELF = Action("see the own account", Scope.READ)
PUSH = Action("push", Scope.PUSH, Role.MEMBER)
OWN_PUSHES = Action("continue a push", Scope.PUSH)
MAINTAIN = Action("maintain", Scope.PUSH, Role.MAINTAINER)
CURATE = Action("change visibility or delete versions", Scope.ADMIN, Role.MAINTAINER)
DELETE = Action("delete an environment", Scope.ADMIN, Role.OWNER)
SEE_MEMBERS = Action("see members", Scope.READ, Role.VIEWER, site_too=True)
MEMBERS = Action("change members", Scope.ADMIN, Role.OWNER, site_too=True)
SEE_AUDIT = Action("read the audit log of an owner", Scope.ADMIN, Role.OWNER, site_too=True)
ORGANISATIONS = Action("make an organisation", Scope.ADMIN)
TOKENS = Action("manage own tokens", Scope.ADMIN)
USERS = Action("manage users", Scope.ADMIN, site=True)
AUDIT = Action("read the whole audit log", Scope.ADMIN, site=True)


@dataclass(frozen=True, slots=True)
class Requester:
    """The user behind a request, by the rights of the token. No scope: a request without a token."""

    scope: Scope | None = None
    is_admin: bool = False


Verdict = Literal["allow", "unauthenticated", "hidden", "forbidden"]


def decide(requester: Requester, action: Action, role: Role = Role.NONE, *, visible: bool) -> tuple[Verdict, str]:
    """Whether `requester`, who has `role` in the owner concerned, may do `action`.

    Args:
        visible: whether what is concerned is public, or of no owner. What is not is hidden from those without a role.

    Returns the verdict and, where it is `forbidden`, what is missing.
    """
    administrates = requester.is_admin and (action.site or action.site_too)
    if not visible and role < Role.VIEWER and not administrates:
        # A request without a token learns the same about what exists as about what does not.
        return ("hidden" if requester.scope is not None or action.anonymous else "unauthenticated"), ""
    if requester.scope is None:
        return ("allow", "") if action.anonymous else ("unauthenticated", "")
    if requester.scope < action.scope:
        return "forbidden", f"this token's scope is '{requester.scope.name.lower()}'; to {action.name} it needs " + (
            f"'{action.scope.name.lower()}'"
        )
    if action.site and not requester.is_admin:
        return "forbidden", f"to {action.name} one has to be an administrator of this hub"
    if role < action.role and not (action.site_too and requester.is_admin):
        return "forbidden", f"to {action.name} needs the role '{action.role.name.lower()}' or a higher one"
    return "allow", ""
