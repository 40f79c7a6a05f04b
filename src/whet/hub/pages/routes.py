"""Routes of the pages: lists and views for reading, and three forms (log in, log out, approve a login)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import Annotated, Any

import nh3
from fastapi import APIRouter, Depends, Form, Query, Request
from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from whet.dashboard.call import NavItem, Site
from whet.dashboard.pages.rendering import PageRoute, render_page, root_of
from whet.hub import policy
from whet.hub.api.call import COOKIE, HubRequest, Identity, Name, Owner, VersionName, Words, action, call_for
from whet.hub.domain import accounts, actions, devices, environments
from whet.hub.domain.access import Caller, environment_for, identify, role_in, version_for
from whet.hub.domain.views import action_view, environment_views, latest, version_view
from whet.hub.errors import HubError
from whet.hub.policy import Role, Scope

router = APIRouter(route_class=PageRoute, include_in_schema=False)
NEXT = re.compile(r"/(?![/\\])[A-Za-z0-9/_.~%?=&+:,@-]{0,300}")
"""A path of this server, to which a login leads."""
PAGE = 50
PROGRAMS = ("/api/v1/", "/data/", "/index/", "/files/")
"""Beginnings of the paths that answer errors as JSON."""
SITE = Site(
    "whet hub",
    (NavItem("Environments", "/environments"),),
    templates=(Path(__file__).with_name("templates"),),
    values=lambda caller: {"user": caller.name},
    login="/login",
    cookie=COOKIE,
    programs=PROGRAMS,
)


async def _page_call(request: Request) -> HubRequest:
    """A request of a page: its session comes from the cookie, and a form only from the hub's own pages."""
    return call_for(request, request.scope["route"].endpoint.hub_action, page=True)


MoreValues = Callable[[Request, str, Caller, Mapping[str, Any]], Mapping[str, Any]]
"""Further values of a page of an application that the hub is part of: its template, who looks, its own values."""
PageCall = Annotated[HubRequest, Depends(_page_call)]
Text = Annotated[Words, Form(max_length=300)]


def render(
    request: Request, template: str, caller: Caller | None, values: Mapping[str, Any], status: int = 200
) -> Response:
    """A page of the application that the hub is or is part of (`app.state.site`)."""
    more_values: MoreValues = request.app.state.more_values
    more = more_values(request, template, caller, values) if caller is not None and caller.token is not None else {}
    return render_page(request, request.app.state.site, template, status, {**more, **values})


def own_values(request: Request, template: str, caller: Caller, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of a hub by itself."""
    return SITE.values(caller)


def root(call: HubRequest) -> str:
    """The path that the hub is under, with a slash at its end."""
    return root_of(call.request) + "/"


@router.get("/")
@router.get("/environments")
@action(policy.READ)
def list_page(
    call: PageCall,
    search: Annotated[Words, Query(max_length=200)] = "",
    cursor: Annotated[int, Query(ge=0, le=10**9)] = 0,
) -> Response:
    with call.read() as (session, caller):
        page = environments.find(session, caller, None, search, cursor, PAGE)
    return render(call.request, "list.html", caller, {"items": page.items, "search": search, "next": page.next})


@router.get("/environments/{owner}/{name}")
@action(policy.READ)
def environment_page(call: PageCall, owner: Owner, name: Name) -> Response:
    return _version_page(call, owner, name, None)


@router.get("/environments/{owner}/{name}/{version}")
@action(policy.READ)
def version_page(call: PageCall, owner: Owner, name: Name, version: VersionName) -> Response:
    return _version_page(call, owner, name, version)


def _version_page(call: HubRequest, owner: str, name: str, version: str | None) -> Response:
    with call.read() as (session, caller):
        environment = environment_for(session, caller, owner, name)
        rows = environments.versions_of(session, environment)
        shown = latest(rows) or (rows[0] if rows else None)
        if version is not None:
            shown = version_for(session, caller, owner, name, version)
        values = {
            "environment": environment_views(session, [environment])[0],
            "versions": [version_view(session, row, call.base) for row in rows[:PAGE]],
            "shown": version_view(session, shown, call.base) if shown is not None else None,
            "readme": render_readme(shown.readme, shown.readme_type) if shown is not None else "",
        }
    return render(call.request, "environment.html", caller, values)


@router.get("/actions/{identity}")
@action(policy.READ)
def action_page(call: PageCall, identity: Identity) -> Response:
    with call.read() as (session, caller):
        row = actions.action_for(session, caller, identity)
        environment = row.version.environment
        may_retry = role_in(session, caller, environment.owner) >= Role.MAINTAINER
        values = {"action": action_view(row), "log": row.log, "may_retry": may_retry}
    return render(call.request, "action.html", caller, values)


@router.post("/actions/{identity}/retry")
@action(policy.MAINTAIN)
def retry_page(call: PageCall, identity: Identity) -> Response:
    with call.write() as (session, caller):
        row = actions.retry(session, caller, identity, call.hub.clock())
    call.hub.new_action.set()
    return RedirectResponse(f"{root(call)}actions/{row.id}", status_code=303)


@router.get("/login")
@action(policy.SERVICE)
def login_page(call: PageCall, next: Annotated[Words, Query(max_length=300)] = "") -> Response:
    return render(call.request, "login.html", None, {"message": "", "next": next if NEXT.fullmatch(next) else ""})


@router.post("/login")
@action(policy.SERVICE)
def log_in(call: PageCall, token: Text, next: Text = "") -> Response:
    """Exchange a token for a session of half a day, which ends when the token does."""
    now = call.hub.clock()
    next = next if NEXT.fullmatch(next) else ""
    try:
        with call.hub.database.write() as session:
            caller = identify(session, token.strip(), call.action, now)
            lifetime = min(accounts.SESSION_S, caller.known_token.expires_at - now)
            scope = Scope(caller.known_token.scope)
            _, text = accounts.issue(
                session, caller.known, "session", scope, lifetime, now, kind="session", parent=caller.known_token
            )
    except HubError as error:
        return render(call.request, "login.html", None, {"message": str(error), "next": next}, error.status)
    answer = RedirectResponse(root_of(call.request) + (next or "/"), status_code=303)
    secure = call.base.startswith("https:")
    answer.set_cookie(COOKIE, text, max_age=int(lifetime), httponly=True, samesite="strict", secure=secure)
    return answer


@router.post("/logout")
@action(policy.SELF)
def log_out(call: PageCall) -> Response:
    with call.write() as (session, caller):
        accounts.revoke_token(session, caller, caller.known_token.id, call.hub.clock())
    answer = RedirectResponse(root(call), status_code=303)
    answer.delete_cookie(COOKIE)
    return answer


@router.get("/device")
@action(policy.SERVICE)
def device_page(call: PageCall, code: Annotated[Words, Query(max_length=20)] = "") -> Response:
    with call.read() as (session, caller):
        if caller.user is None:
            target = f"/device?code={code}"
            query = f"?next={target.replace('?', '%3F')}" if NEXT.fullmatch(target) else ""
            return RedirectResponse(f"{root(call)}login{query}", status_code=303)
        row = devices.waiting(session, call.sender, caller, code, call.hub.clock()) if code else None
        waiting = {"client": row.client, "scope": Scope(row.scope).name.lower()} if row is not None else None
    return render(call.request, "device.html", caller, {"code": code.strip().upper(), "waiting": waiting, "state": ""})


@router.post("/device")
@action(policy.SELF)
def approve_device(call: PageCall, code: Text, decision: Text) -> Response:
    with call.write() as (session, caller):
        done = devices.decide(session, call.sender, caller, code, decision == "approve", call.hub.clock())
    return render(call.request, "device.html", caller, {"code": "", "waiting": None, "state": done.state})


# A README as HTML that can do nothing: what a package wrote is hostile.

LONGEST = 100_000
TAGS = set(
    re.findall(
        r"\w+",
        "a b blockquote br code dd del dl dt em h1 h2 h3 h4 h5 h6 hr i li ol p pre s strong sub sup table tbody td th"
        " thead tr ul",
    )
)
ATTRIBUTES = {"a": {"href", "title"}, "th": {"align"}, "td": {"align"}}


@cache
def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable(["table", "strikethrough"])


def render_readme(text: str, kind: str) -> Markup:
    """HTML without scripts, styles, images, forms, or links other than to the web and to mail addresses."""
    text = text[:LONGEST]
    html = _markdown().render(text) if kind == "text/markdown" else f"<pre>{escape(text)}</pre>"
    cleaned = nh3.clean(
        html,
        tags=TAGS,
        attributes=ATTRIBUTES,
        url_schemes={"http", "https", "mailto"},
        link_rel="nofollow noopener noreferrer",
        strip_comments=True,
    )
    return Markup(cleaned)
