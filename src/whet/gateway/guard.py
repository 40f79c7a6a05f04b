"""Which requests are accepted: by their headers, so that web pages cannot use a gateway on this machine; by key.

A page of any site can make a browser send requests to loopback; and a site whose own name is made to resolve to
loopback (DNS rebinding) can read what is answered. So requests must be for a name of this server (`Host`), must not
come from the page of another site (`Origin`), and must be declared as JSON, for which a browser sends a preflight
request first. Sessions need none of this: each has a key that no page knows, and proxies of sandboxes have names of
their own. An `Access` reads the key that a request carries; a `Visitor` is what that key may use.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from whet.gateway.wire import RequestError
from whet.system.offline import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send
import hmac
from collections.abc import Mapping, Sequence
from typing import Protocol

from whet.clients.client import AnyClient
from whet.types import Response

ANY = "*"
_LOOPBACK_NAMES = frozenset({"localhost"})


@dataclass(frozen=True, slots=True)
class Hosts:
    """The names that requests may be for. Loopback is always one."""

    names: frozenset[str] = frozenset()
    any_address: bool = False  # an address, other than a name, cannot be made to resolve to another

    @classmethod
    def of(cls, listening: str, allowed: Iterable[str] = ()) -> Hosts:
        """Of a server that listens on the address `listening`, with the names in `allowed`; "*" allows any."""
        names = {name.strip().rstrip(".").lower() for name in (listening, *allowed)}
        if is_loopback(listening):
            return cls(frozenset(names))
        return cls(frozenset(names | {socket.gethostname().lower()}), any_address=True)

    def allow(self, name: str | None) -> bool:
        """Whether a request may be for the host `name`, without its port."""
        if ANY in self.names:
            return True
        name = (name or "").rstrip(".").lower()
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in self.names or name in _LOOPBACK_NAMES
        return address.is_loopback or self.any_address or name in self.names


class GatewayGuard:
    """Passes requests to `app`, and answers those that it refuses with `refuse(scope, error)`."""

    def __init__(self, app: ASGIApp, hosts: Hosts, refuse: Callable[[Scope, RequestError], ASGIApp]) -> None:
        self._app, self._hosts, self._refuse = app, hosts, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and not scope["path"].startswith("/sessions/"):
            try:
                self._check(scope)
            except RequestError as error:
                app = self._refuse(scope, error)
        await app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        json = scope["method"] != "POST"
        for name, value in scope["headers"]:
            if name == b"host":
                self._check_host(value.decode("latin-1"))
            elif name == b"origin":
                self._check_origin(value.decode("latin-1"))
            elif name == b"content-type":
                kind = value.partition(b";")[0].strip().lower()
                json = json or kind == b"application/json" or kind.endswith(b"+json")
        if not json:
            raise RequestError("the request needs the header Content-Type: application/json", status=415)

    def _check_host(self, host: str) -> None:
        if not self._hosts.allow(_name_in(f"//{host}")):
            raise RequestError(
                f"this server does not answer for the host {host[:100]!r}. If that is its name, add --allow-host.",
                status=403,
            )

    def _check_origin(self, origin: str) -> None:
        if not self._hosts.allow(_name_in(origin)):
            raise RequestError(
                f"pages of {origin[:100]!r} may not use this server. Add their host with --allow-host.", status=403
            )


def _name_in(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


class Visitor(Protocol):
    """What the requests with one key may use. What it may not see is for it as if it did not exist."""

    async def models(self) -> Sequence[str]:
        """The names of the models that this key may use."""

    def find(self, model: str) -> AnyClient | None:
        """The client of a model; None for one that this key may not use. Raises `RequestError` for one that is known
        and cannot answer now."""

    def answered(self, model: str, responses: Sequence[Response]) -> None:
        """Count one request that was answered, with the response of each of its choices."""


class Access(Protocol):
    """Decides by the key of a request."""

    async def visitor(self, key: str | None) -> Visitor:
        """Raises `RequestError` with status 401 for a key that is missing or not valid."""


class OneKey:
    """All of `models` for requests with the key; for every request where there is none."""

    def __init__(self, models: Mapping[str, AnyClient], key: str | None) -> None:
        self._models, self._key = models, key

    async def visitor(self, key: str | None) -> Visitor:
        if self._key is not None and not (key and hmac.compare_digest(key.encode(), self._key.encode())):
            raise RequestError("the API key is missing or wrong", status=401)
        return self

    async def models(self) -> Sequence[str]:
        return list(self._models)

    def find(self, model: str) -> AnyClient | None:
        return self._models.get(model)

    def answered(self, model: str, responses: Sequence[Response]) -> None:
        """Nothing: the gateway's own figures have no users."""
