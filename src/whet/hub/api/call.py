"""One request: its credentials, the action of its route, and the session in which it is answered."""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path, Query, Request
from pydantic import AfterValidator
from sqlalchemy import update
from sqlalchemy.orm import Session

from whet.config import StrictModel
from whet.hub.answers import Page
from whet.hub.domain.access import Caller, identify, permit
from whet.hub.domain.devices import DeviceClient
from whet.hub.domain.hub import Hub
from whet.hub.errors import HubError
from whet.hub.policy import Action
from whet.hub.storage.tables import TokenRow

T = TypeVar("T")
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
USED_S = 600.0  # how exact `last_used_at` of a token is
USER = "__token__"
COOKIE = "whet_hub_session"
OF_PAGES = "/data/"
_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}(:\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:\d{1,5})?")


def action(what: Action) -> Callable[[Endpoint], Endpoint]:
    """Declare what a route does; `policy.decide` gets nothing else."""

    def mark(endpoint: Endpoint) -> Endpoint:
        endpoint.hub_action = what  # type: ignore[attr-defined]
        return endpoint

    return mark


@dataclass(slots=True)
class HubRequest:
    """A request of a route."""

    hub: Hub
    action: Action
    token: str | None
    base: str
    request: Request
    kind: str = "token"  # or the session of a page; neither stands for the other

    @contextlib.contextmanager
    def read(self) -> Iterator[tuple[Session, Caller]]:
        """A session that only reads, and the caller."""
        with self.hub.database.read() as session:
            caller = identify(session, self.token, self.action, self.hub.clock(), self.kind)
            yield session, caller
        self._note_use(caller)

    @contextlib.contextmanager
    def write(self) -> Iterator[tuple[Session, Caller]]:
        """A session that is committed, and the caller. One that may not write at all does not begin to."""
        with self.hub.database.read() as session:
            known = identify(session, self.token, self.action, self.hub.clock(), self.kind)
            if known.token is None and not self.action.anonymous:
                permit(known)
        with self.hub.database.write() as session:
            caller = identify(session, self.token, self.action, self.hub.clock(), self.kind)
            yield session, caller
        self._note_use(caller)

    @property
    def sender(self) -> DeviceClient:
        """The address of the request, by which attempts to log in are counted."""
        return DeviceClient.of(self.hub, self.request.client.host if self.request.client is not None else None)

    def _note_use(self, caller: Caller) -> None:
        now = self.hub.clock()
        token = caller.token
        if token is None or now - (token.last_used_at or 0.0) < USED_S:
            return
        with contextlib.suppress(HubError), self.hub.database.write() as session:
            session.execute(update(TokenRow).where(TokenRow.id == token.id).values(last_used_at=now))


def token_of(authorization: str | None) -> str | None:
    """The token of an Authorization header; None without a header. Raises `HubError` for any other kind."""
    if authorization is None:
        return None
    kind, _, value = authorization.partition(" ")
    value = value.strip()
    if kind.lower() == "bearer" and value:
        return value
    if kind.lower() == "basic":
        with contextlib.suppress(binascii.Error, UnicodeDecodeError):
            user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
            if user == USER and password:
                return password
    raise HubError("unauthenticated", f"send a token: as 'Bearer TOKEN', or as the password of the user '{USER}'.")


def base_of(request: Request) -> str:
    """The hub's own address as the client wrote it, with a slash at the end."""
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        raise HubError("malformed", "the Host header is missing or is none.")
    return f"{request.url.scheme}://{host}{request.scope.get('root_path', '').rstrip('/')}/"


async def call_of(request: Request) -> HubRequest:
    """A request of a program, with a token; below `/data` one of a page's script, with the page's session."""
    action_of_route: Action = request.scope["route"].endpoint.hub_action
    return call_for(request, action_of_route, page=below_root(request).startswith(OF_PAGES))


def call_for(request: Request, what: Action, *, page: bool) -> HubRequest:
    """The request as one for an action. Raises `HubError` for a form of another site, and for a wrong header."""
    base = base_of(request)
    if not page:
        return HubRequest(request.app.state.hub, what, token_of(request.headers.get("authorization")), base, request)
    if request.method not in ("GET", "HEAD"):
        origin = request.headers.get("origin")
        same = request.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
        if not same or (origin is not None and not base.startswith(origin + "/")):
            raise HubError("forbidden", "this form was sent from another site.")
    return HubRequest(request.app.state.hub, what, request.cookies.get(COOKIE), base, request, kind="session")


def below_root(request: Request) -> str:
    """The path without that which the application is under."""
    return request.url.path.removeprefix(str(request.scope.get("root_path", "")).rstrip("/"))


CallParameter = Annotated[HubRequest, Depends(call_of)]


class RequestBody(StrictModel):
    """A JSON object of a request; unknown fields are refused."""


def _storable(text: str) -> str:
    if not all(character.isprintable() or character in "\n\t\r" for character in text):
        raise ValueError("control characters and lone surrogates are not allowed")
    return text


_NAME = r"^[a-z0-9]+(-[a-z0-9]+)*$"
Words = Annotated[str, AfterValidator(_storable)]
Owner = Annotated[str, Path(pattern=_NAME, max_length=39)]
Name = Annotated[str, Path(pattern=_NAME, max_length=64)]
VersionName = Annotated[str, Path(pattern=r"^[0-9A-Za-z.!+-]+$", max_length=64)]
Identity = Annotated[str, Path(pattern=r"^[0-9a-f]{16,32}$")]
Key = Annotated[str, Path(pattern=r"^[A-Z][A-Z0-9_]*$", max_length=64)]
Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[int, Query(ge=0, le=10**9)]


@dataclass(frozen=True, slots=True)
class ListRange:
    """Which part of a list a request is for."""

    limit: int = 50
    cursor: int = 0

    def of(self, items: Sequence[T]) -> Page[T]:
        """Of a list that is held whole."""
        following = self.cursor + self.limit
        return Page(items=list(items[self.cursor : following]), next=str(following) if following < len(items) else None)


async def _part(limit: Limit = 50, cursor: Cursor = 0) -> ListRange:
    return ListRange(limit, cursor)


PartOfList = Annotated[ListRange, Depends(_part)]
