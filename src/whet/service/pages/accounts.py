"""Tokens, organisations with their members, and the users of the service."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from whet.dashboard.pages.rendering import PageRoute, address, root_of
from whet.hub import policy
from whet.hub.api import accounts as api
from whet.hub.api.call import HubRequest, Identity, action
from whet.hub.pages.routes import PageCall
from whet.hub.policy import Role
from whet.service.pages.forms import ALL, Text, confirm, filled, form_page, owners_of, sent, viewer_in
from whet.service.service import service_of
from whet.service.training_api import training_api_of

router = APIRouter(route_class=PageRoute)
ROLES = ("viewer", "member", "maintainer", "owner")


@router.get("/settings")
@action(policy.TOKENS)
def settings_page(request: Request, call: PageCall) -> Response:
    """The first of the pages below "Settings"."""
    return RedirectResponse(f"{root_of(request)}/tokens", status_code=303)


@router.get("/tokens")
@action(policy.TOKENS)
def tokens_page(request: Request, call: PageCall) -> Response:
    items = api.list_tokens(call, ALL).items
    api_of = training_api_of(service_of(request).data)
    return form_page(request, "tokens.html", tokens=items, training_api=api_of)


@router.post("/tokens")
@action(policy.TOKENS)
def add_token(request: Request, call: PageCall, name: Text, scope: Text = "read", days: Text = "90") -> Response:
    """The page with the new token, which is shown only here."""
    body = {"name": name.strip(), "scope": scope, "days": days}
    page = partial(tokens_page, request, call)
    return sent(request, lambda: api.add_token(call, filled(api.NewToken, **body)), None, page)


@router.post("/tokens/{token}/revoke")
@action(policy.TOKENS)
def revoke_token(request: Request, call: PageCall, token: Identity) -> Response:
    return sent(request, lambda: api.revoke_token(call, token), "/tokens", partial(tokens_page, request, call))


@router.get("/tokens/{token}/revoke")
@action(policy.TOKENS)
def ask_to_revoke(request: Request, call: PageCall, token: Identity) -> Response:
    return confirm(
        request,
        title="Revoke this token?",
        text="Programs that use it are refused at once, and pages that were opened with it end.",
        button="Revoke the token",
        target=f"/tokens/{token}/revoke",
        back="/tokens",
    )


@router.get("/members")
@action(policy.SEE_MEMBERS)
def members_page(request: Request, call: PageCall, owner: str = "") -> Response:
    viewer = viewer_in(request)
    organisations = [name for name in owners_of(viewer, Role.VIEWER) if name != viewer.name]
    owner = owner or next(iter(organisations), "")
    listing = HubRequest(call.hub, policy.SEE_MEMBERS, call.token, call.base, call.request, call.kind)
    items = api.list_members(listing, ALL, owner).items if owner else []
    return form_page(
        request,
        "members.html",
        owner=owner,
        owners=organisations,
        members=items,
        roles=ROLES,
        may_change=viewer.is_admin or viewer.roles.get(owner, Role.NONE) >= Role.OWNER,
    )


@router.post("/members")
@action(policy.MEMBERS)
def set_member(request: Request, call: PageCall, owner: Text, user: Text, role: Text) -> Response:
    def do() -> Any:
        return api.set_member(call, owner, user.strip(), filled(api.Member, role=role))

    return sent(request, do, address("/members", {"owner": owner}), partial(members_page, request, call, owner))


@router.post("/members/remove")
@action(policy.MEMBERS)
def remove_member(request: Request, call: PageCall, owner: Text, user: Text) -> Response:
    again = partial(members_page, request, call, owner)
    return sent(request, lambda: api.remove_member(call, owner, user), address("/members", {"owner": owner}), again)


@router.post("/organisations")
@action(policy.ORGANISATIONS)
def add_organisation(request: Request, call: PageCall, name: Text) -> Response:
    return sent(
        request,
        lambda: api.add_organisation(call, filled(api.NewOrganisation, name=name.strip())),
        address("/members", {"owner": name.strip()}),
        partial(members_page, request, call),
    )


@router.get("/users")
@action(policy.USERS)
def users_page(request: Request, call: PageCall) -> Response:
    return form_page(request, "users.html", users=api.list_users(call, ALL).items)


@router.post("/users")
@action(policy.USERS)
def add_user(request: Request, call: PageCall, name: Text, is_admin: Text = "") -> Response:
    """The page with the new user's first token, which is shown only here."""
    body = {"name": name.strip(), "is_admin": is_admin == "true"}
    page = partial(users_page, request, call)
    return sent(request, lambda: api.add_user(call, filled(api.NewUser, **body)), None, page)


@router.get("/users/{user}/disable")
@action(policy.USERS)
def ask_to_disable(request: Request, call: PageCall, user: str) -> Response:
    return confirm(
        request,
        title=f"Disable {user}?",
        text="The tokens of this user end at once. What the user pushed and trained stays; the name is not used again.",
        button="Disable the user",
        target=f"/users/{user}/disable",
        back="/users",
    )


@router.post("/users/{user}/disable")
@action(policy.USERS)
def disable_user(request: Request, call: PageCall, user: str) -> Response:
    return sent(request, lambda: api.disable_user(call, user), "/users", partial(ask_to_disable, request, call, user))
