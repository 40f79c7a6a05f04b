"""One HTTP request through the proxy: its target, and what is forwarded. Bytes are parsed and written by h11.

A message is never copied verbatim. It is parsed, checked and serialised again, so that the server sees exactly the
request that was checked: the Host header is that of the address in the request line, framing is unambiguous, and
nothing behind the request is passed on. Each connection carries one request.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass

import h11

from whet.sandboxes.network.allow_list import PROXY_HOST, PROXY_PORT, canonical_host, split_port
from whet.system.peer_timeout import peer_timeout

HEAD_BYTES = 16 * 1024
CHUNK = 64 * 1024
_ABSOLUTE = re.compile(r"http://(?P<authority>[^/?#\\@]+)(?P<path>(?:[/?][^#\\]*)?)\Z", re.IGNORECASE)
_PATH = re.compile(r"/[^#\\]*\Z")
_OWN_HEADERS = {
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"upgrade",
    b"host",
    b"content-length",
    b"transfer-encoding",
}
Headers = list[tuple[bytes, bytes]]


class BadRequestError(Exception):
    """What arrived is no request that a proxy can judge."""


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """Where a request wants to go."""

    host: str  # canonical
    port: int
    path: str | None  # None: a tunnel (CONNECT)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 80 and self.path is not None else f"{host}:{self.port}"


class Side:
    """One end of the connection: a stream and its HTTP state. `spend` is called with every byte count, both ways."""

    def __init__(
        self,
        role: type[h11.CLIENT] | type[h11.SERVER],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        idle_s: float,
        spend: Callable[[int], None] = lambda count: None,
    ) -> None:
        writer.transport.set_write_buffer_limits(high=0)  # what is written has left before more is read
        self.http = h11.Connection(role, max_incomplete_event_size=HEAD_BYTES)
        self.reader = reader
        self.writer = writer
        self.written = False
        self._spend = spend
        self._idle_s = idle_s

    async def next(self) -> h11.Event:
        """The next event. Raises h11.RemoteProtocolError for what is not HTTP, TimeoutError when nothing comes."""
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                self.http.receive_data(await self.read())
            elif event is h11.PAUSED:
                raise h11.RemoteProtocolError("bytes behind the end of the message")
            else:
                return event  # type: ignore[return-value]

    async def read(self) -> bytes:
        async with peer_timeout(self._idle_s):
            data = await self.reader.read(CHUNK)
        self._spend(len(data))
        return data

    async def send(self, event: h11.Event) -> None:
        await self.write(self.http.send(event) or b"")

    async def write(self, data: bytes) -> None:
        self._spend(len(data))
        self.written = True
        self.writer.write(data)
        async with peer_timeout(self._idle_s):
            await self.writer.drain()


def target_of(request: h11.Request, has_origin: bool = False) -> RequestTarget:
    """Raises BadRequestError for a request that is not one to a proxy or that could be read in two ways.

    With an origin, a request in origin form is one to the proxy's own address, which represents it.
    """
    text = request.target.decode("ascii", "replace")
    if request.method == b"CONNECT":
        return _target(text, None, None)
    if text.lower().startswith("https://"):
        raise BadRequestError("https goes through a tunnel: CONNECT host:443")
    names = [name for name, _ in request.headers]
    if b"content-length" in names and b"transfer-encoding" in names:
        raise BadRequestError("it has both a length and chunks")
    if has_origin and _PATH.match(text):
        return RequestTarget(PROXY_HOST, PROXY_PORT, text)
    match = _ABSOLUTE.match(text)
    if match is None:
        raise BadRequestError("this is a proxy: request http://host/path, or CONNECT host:port")
    path = match["path"]
    return _target(match["authority"], 80, path if path.startswith("/") else f"/{path}")


def _target(authority: str, default_port: int | None, path: str | None) -> RequestTarget:
    split = split_port(authority)
    host, port = split if split is not None else ("", None)
    port = default_port if port is None else port
    canonical = canonical_host(host)
    if canonical is None or port is None:
        raise BadRequestError(f"{authority[:100]!r} is no host and port")
    return RequestTarget(canonical, port, path)


def request_for(request: h11.Request, target: RequestTarget) -> h11.Request:
    """The same request as the server is to see it."""
    headers: Headers = [(b"Host", target.authority.encode())]
    headers += _passed_on(request.headers)
    return h11.Request(method=request.method, target=(target.path or "/").encode(), headers=headers)


def response_for(response: h11.Response) -> h11.Response:
    """The same response as the client is to see it: the connection ends with it."""
    return h11.Response(status_code=response.status_code, headers=_passed_on(response.headers), reason=response.reason)


def _passed_on(headers: h11._headers.Headers) -> Headers:
    """What is said to the other end rather than to the proxy, with the framing that h11 has understood."""
    named = {word.strip().lower() for name, value in headers if name == b"connection" for word in value.split(b",")}
    kept = [(name, value) for name, value in headers if name not in _OWN_HEADERS | named]
    kept += [(name, value) for name, value in headers if name in (b"content-length", b"transfer-encoding")]
    return [*kept, (b"Connection", b"close")]


async def exchange(client: Side, server: Side, request: h11.Request) -> None:
    """Pass a request with its body on and its response back. The response may come before the body's end."""
    await server.send(request)
    upload = asyncio.ensure_future(_upload(client, server))
    download = asyncio.ensure_future(_download(client, server))
    try:
        await asyncio.wait({upload, download}, return_when=asyncio.FIRST_COMPLETED)
        if not download.done():
            with contextlib.suppress(ConnectionError):  # the server takes no more, and its response may say why
                await upload
        await download
    finally:
        for task in (upload, download):
            task.cancel()
        await asyncio.gather(upload, download, return_exceptions=True)


async def _upload(client: Side, server: Side) -> None:
    while True:
        event = await client.next()
        if isinstance(event, h11.Data):
            await server.send(h11.Data(data=event.data))
        else:
            await server.send(h11.EndOfMessage())
            return


async def _download(client: Side, server: Side) -> None:
    while True:
        event = await server.next()
        if isinstance(event, h11.InformationalResponse):
            await client.send(h11.InformationalResponse(status_code=event.status_code, headers=[]))
        elif isinstance(event, h11.Response):
            await client.send(response_for(event))
        elif isinstance(event, h11.Data):
            await client.send(h11.Data(data=event.data))
        elif isinstance(event, h11.EndOfMessage):
            await client.send(h11.EndOfMessage())
            return
        else:
            raise h11.RemoteProtocolError("the server closed the connection before its response was complete")
