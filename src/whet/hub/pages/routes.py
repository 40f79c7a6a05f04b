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
from jinja2 import Environment as Templates
from jinja2 import FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from starlette.responses import HTMLResponse, RedirectResponse, Response

from whet.display.html import STYLE
from whet.hub import policy
from whet.hub.api.call import COOKIE, Call, Identity, Name, Owner, VersionName, Words, action, call_for
from whet.hub.domain import accounts, actions, devices, environments
from whet.hub.domain.access import Caller, environment_for, identify, permit, role_in, version_for
from whet.hub.domain.views import action_view, environment_views, latest, version_view
from whet.hub.errors import HubError
from whet.hub.policy import Role, Scope

router = APIRouter(include_in_schema=False)
FOLDER = Path(__file__).parent
NEXT = re.compile(r"/(?![/\\])[A-Za-z0-9/_.~%?=&+:,@-]{0,300}")
"""A path of this server, to which a login leads."""
POLICY = (
    "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; img-src 'none'"
)
PAGE = 50
templates = Templates(
    loader=FileSystemLoader(FOLDER / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)
CSS = STYLE + (FOLDER / "hub.css").read_text(encoding="utf-8")


async def _page_call(request: Request) -> Call:
    """A request of a page: its session comes from the cookie, and a form only from the hub's own pages."""
    return call_for(request, request.scope["route"].endpoint.hub_action, page=True)


Look = Callable[[Request, str, Caller | None, Mapping[str, Any], int], Response]
"""Renders a template of the hub: its name, who looks, its values, the status."""
PageCall = Annotated[Call, Depends(_page_call)]
Text = Annotated[Words, Form(max_length=300)]


def render(
    request: Request, template: str, caller: Caller | None, values: Mapping[str, Any], status: int = 200
) -> Response:
    """A page, in the look of the application that it is part of (`app.state.look`), or in the hub's own."""
    look: Look | None = getattr(request.app.state, "look", None)
    if look is not None:
        return look(request, template, caller, values, status)
    user = caller.name if caller is not None else ""
    text = templates.get_template(template).render(base=root_of(request) + "/", user=user, **values)
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "private, no-store"}
    return HTMLResponse(text, status_code=status, headers=headers)


def error_page(request: Request, error: HubError) -> Response:
    """An error of a page. Where a session has ended, the way to a new one."""
    if error.code == "unauthenticated":
        answer: Response = RedirectResponse("/".join([root_of(request), "login"]), status_code=303)
        answer.delete_cookie(COOKIE)
        return answer
    return render(request, "error.html", None, {"message": str(error), "status": error.status}, error.status)


def root_of(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def root(call: Call) -> str:
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
        items, following = environments.find(session, caller, None, search, cursor, PAGE)
    return render(call.request, "list.html", caller, {"items": items, "search": search, "next": following})


@router.get("/environments/{owner}/{name}")
@action(policy.READ)
def environment_page(call: PageCall, owner: Owner, name: Name) -> Response:
    return _version_page(call, owner, name, None)


@router.get("/environments/{owner}/{name}/{version}")
@action(policy.READ)
def version_page(call: PageCall, owner: Owner, name: Name, version: VersionName) -> Response:
    return _version_page(call, owner, name, version)


def _version_page(call: Call, owner: str, name: str, version: str | None) -> Response:
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
            assert caller.token is not None
            lifetime = min(accounts.SESSION_S, caller.token.expires_at - now)
            scope = Scope(caller.token.scope)
            _, text = accounts.issue(
                session, caller.known, "session", scope, lifetime, now, kind="session", parent=caller.token
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
        permit(caller)
        assert caller.token is not None
        accounts.revoke_token(session, caller, caller.token.id, call.hub.clock())
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
    return render(call.request, "device.html", caller, {"code": "", "waiting": None, "state": done["state"]})


@router.get("/static/hub.css")
@action(policy.SERVICE)
def style(call: PageCall) -> Response:
    return Response(CSS, media_type="text/css", headers={"Cache-Control": "public, max-age=3600"})


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


def render_readme(text: str, kind: str) -> str:
    """HTML without scripts, styles, images, forms, or links other than to the web and to mail addresses."""
    text = text[:LONGEST]
    html = _markdown().render(text) if kind == "text/markdown" else f"<pre>{escape(text)}</pre>"
    return nh3.clean(
        html,
        tags=TAGS,
        attributes=ATTRIBUTES,
        url_schemes={"http", "https", "mailto"},
        link_rel="nofollow noopener noreferrer",
        strip_comments=True,
    )
