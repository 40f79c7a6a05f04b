"""One request: the key it came with, and the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from whet.hub.api.call import HubRequest, base_of
from whet.hub.domain.access import Caller, digest_of, permit
from whet.hub.errors import HubError
from whet.hub.policy import Action, Scope
from whet.tinker.server import TinkerServer

KEY = "tml-"
"""Clients insist that a key begins like this; a token of the hub follows."""

READ = Action("read training runs", Scope.READ)
TRAIN = Action("train", Scope.PUSH)
WATCH = Action("read figures of this server", Scope.READ, site=True)


async def server_of(request: Request) -> TinkerServer:
    return _server(request)


def _server(request: Request) -> TinkerServer:
    server = request.app.state.tinker
    assert isinstance(server, TinkerServer)
    return server


def call_to(action: Action, request: Request) -> HubRequest:
    """A request to do `action` with the key that it came with."""
    given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
    token = given.removeprefix(KEY) or None
    return HubRequest(_server(request).hub, action, token, base_of(request), request)


def _call(action: Action) -> Callable[[Request], Awaitable[HubRequest]]:
    async def call(request: Request) -> HubRequest:
        return call_to(action, request)

    return call


Reading = Annotated[HubRequest, Depends(_call(READ))]
Training = Annotated[HubRequest, Depends(_call(TRAIN))]
Watching = Annotated[HubRequest, Depends(_call(WATCH))]
Server = Annotated[TinkerServer, Depends(server_of)]


def owner_of(caller: Caller) -> str:
    """The user of the request's key. Raises `HubError` without one, and for one that may not do this."""
    permit(caller)
    return caller.name


async def owner_now(call: HubRequest, server: TinkerServer) -> str:
    """The user of a request's key, without the database where nothing changed there since it was last used.

    Raises `HubError` as `owner_of` does.
    """

    def read() -> Caller:
        with call.read() as (_, caller):
            return caller

    if call.token is None:
        raise HubError("unauthenticated", "this needs a key. Set TINKER_API_KEY.")
    caller = await server.unchanged.value(("key", digest_of(call.token)), read)
    if caller.known_token.expires_at <= server.hub.clock():
        raise HubError("unauthenticated", "the key has expired.")
    return owner_of(replace(caller, action=call.action))


def check(call: HubRequest) -> str:
    """The user of a request that needs nothing else of the database."""
    with call.read() as (_, caller):
        return owner_of(caller)


def session_owner(opened: tuple[Session, Caller]) -> tuple[Session, str]:
    """Of a request that is being answered: its database session and its user."""
    return opened[0], owner_of(opened[1])
