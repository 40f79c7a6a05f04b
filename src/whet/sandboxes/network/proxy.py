"""Network access of a sandbox: an HTTP proxy on the host with an allow-list of hosts.

The sandbox keeps its empty network namespace. Its process 1 opens a listening socket on the loopback address in there,
before any code runs, and passes it to the host; connections that the code makes to it are accepted here. Nothing of
the proxy runs inside, and there is no other route out. Plain HTTP is parsed and serialised again; a tunnel (CONNECT)
has to begin with TLS for exactly the requested host, unless the operator named an address. Where the sandbox has an
origin, a request that is not made to a proxy goes there. Refusals are kept in `NetworkUse` and logged.
Limits: connections at once, for the sandbox and for the process; bytes; time without a byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import resource
import socket
import time
from http import HTTPStatus

import h11

from whet.sandboxes.network.allow_list import KEPT, NetworkUse, Refusal, Rule
from whet.sandboxes.network.dial import Dialer, DialRefusedError
from whet.sandboxes.network.proxy_http import (
    CHUNK,
    BadRequestError,
    RequestTarget,
    Side,
    exchange,
    request_for,
    target_of,
)
from whet.sandboxes.permits import Permit, Permits
from whet.system.peer_timeout import peer_timeout

_log = logging.getLogger(__name__)
HEAD_S = 10.0  # for a request's head, or a tunnel's first message, to arrive
IDLE_S = 60.0  # without a byte either way before a connection is ended
LINGER_S = 1.0  # to read on after a refusal, so that the client sees it before the connection ends
LINGER_BYTES = 1 << 20
RETRY_S = 0.1  # when the host is out of descriptors
PACE_S = 0.005  # between two connections of a sandbox: a flood costs the host no more than 200 a second
PENALTY_S = 0.5  # before the answer to a refused request, from the hundredth on
LOGGED = 3  # refusals of a sandbox


class AllowListProxy:
    """Serves one sandbox's listening socket until it is closed."""

    def __init__(
        self,
        name: str,
        listener: socket.socket,
        dialer: Dialer,
        max_connections: int,
        max_bytes: int,
        head_s: float = HEAD_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self.use = NetworkUse()
        self._name = name
        self._listener = listener
        self._dialer = dialer
        self._slots = asyncio.Semaphore(max_connections)
        self._max_bytes = max_bytes
        self._head_s = head_s
        self._idle_s = idle_s
        self._connections: set[asyncio.Task[None]] = set()
        self._fresh: set[socket.socket] = set()  # accepted, and not yet the event loop's to close
        listener.setblocking(False)
        self._serving = asyncio.get_running_loop().create_task(self._serve())

    @property
    def connections(self) -> int:
        """Connections of the sandbox that are being served."""
        return len(self._connections)

    async def close(self) -> None:
        """End every connection and give the socket up."""
        tasks = [self._serving, *self._connections]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()
        self._dialer.close()

    async def _serve(self) -> None:
        """Accept while there is room: code that opens more connections than it may waits in the kernel's queue."""
        while True:
            await self._slots.acquire()
            await _readable(self._listener)
            permit = await process_connections().take(self)
            try:
                accepted, _ = self._listener.accept()
            except OSError as error:
                process_connections().give_back(permit)
                self._slots.release()
                if not isinstance(error, (BlockingIOError, ConnectionError)):
                    _log.warning("sandbox %s: its proxy cannot accept a connection: %s", self._name, error)
                    await asyncio.sleep(RETRY_S)
                continue
            self._fresh.add(accepted)
            task = asyncio.get_running_loop().create_task(self._connection(accepted))
            self._connections.add(task)
            task.add_done_callback(functools.partial(self._ended, accepted, permit))
            await asyncio.sleep(PACE_S)

    def _ended(self, accepted: socket.socket, permit: Permit, task: asyncio.Task[None]) -> None:
        """Not in the task itself: one that is cancelled before its first step runs no `finally`."""
        self._connections.discard(task)
        if accepted in self._fresh:
            self._fresh.discard(accepted)
            accepted.close()
        process_connections().give_back(permit)
        self._slots.release()

    async def _connection(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=accepted, limit=CHUNK)
        self._fresh.discard(accepted)
        try:
            await self._converse(Side(h11.SERVER, reader, writer, self._idle_s))
        except OSError:  # the code has hung up
            return
        finally:
            writer.transport.abort()

    async def _converse(self, client: Side) -> None:
        """One request: checked, then forwarded or refused."""
        target: RequestTarget | None = None
        wanted = "an unreadable request"
        try:
            self._spend(0)
            async with peer_timeout(self._head_s):
                request = await client.next()
            if not isinstance(request, h11.Request):
                return  # connected and said nothing
            wanted = request.target[:200].decode("ascii", "replace")
            target = target_of(request, self._dialer.has_origin)
            await self._carry_out(client, request, target)
        except DialRefusedError as error:
            self._note(wanted, str(error))
            await self._answer(client, HTTPStatus.FORBIDDEN, f"{error}. It may reach: {self._dialer.describe()}")
        except BadRequestError as error:
            self._note(wanted, str(error))
            await self._answer(client, HTTPStatus.BAD_REQUEST, str(error))
        except h11.RemoteProtocolError as error:
            if target is None:
                self._note(wanted, str(error))
                await self._answer(client, HTTPStatus.BAD_REQUEST, str(error))
            else:
                self.use.failed += 1
                await self._answer(
                    client, HTTPStatus.BAD_GATEWAY, f"{target.authority} or its client broke HTTP: {error}"
                )
        except TimeoutError:
            if target is None:
                self._note(wanted, "no complete request arrived in time")
                await self._answer(client, HTTPStatus.REQUEST_TIMEOUT, "no complete request arrived in time")
            else:
                self.use.failed += 1
                await self._answer(client, HTTPStatus.GATEWAY_TIMEOUT, f"{target.authority} does not answer")
        except OSError as error:
            if target is None:
                raise
            self.use.failed += 1
            await self._answer(client, HTTPStatus.BAD_GATEWAY, f"{target.authority} cannot be reached: {error}")

    async def _carry_out(self, client: Side, request: h11.Request, target: RequestTarget) -> None:
        rule, reader, writer = await self._dialer.connect(target.host, target.port)
        try:
            server = Side(h11.CLIENT, reader, writer, self._idle_s, self._spend)
            if target.path is None:
                await self._tunnel(client, server, target, rule)
            else:
                self.use.requests += 1
                await exchange(client, server, request_for(request, target))
                await _hang_up(client)
        finally:
            writer.transport.abort()

    async def _tunnel(self, client: Side, server: Side, target: RequestTarget, rule: Rule) -> None:
        if not isinstance(await client.next(), h11.EndOfMessage):
            raise BadRequestError("a request for a tunnel has no body")
        await client.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
        first = client.http.trailing_data[0]
        if rule.address is None:
            async with peer_timeout(self._head_s):
                first = await _greeting(client, first, target.host)
        self.use.requests += 1
        if first:
            await server.write(first)
        await self._pump_both(client, server)

    async def _pump_both(self, client: Side, server: Side) -> None:
        """Bytes both ways until both ends have closed, one has failed, or none came for a while."""
        latest = time.monotonic()

        async def pump(source: Side, sink: Side) -> None:
            nonlocal latest
            while True:
                try:
                    data = await source.read()
                except TimeoutError:
                    if time.monotonic() - latest < self._idle_s:
                        continue  # the other direction is busy
                    raise
                latest = time.monotonic()
                if not data:
                    with contextlib.suppress(OSError):
                        sink.writer.write_eof()
                    return
                await sink.write(data)

        pumps = [asyncio.ensure_future(pump(*ends)) for ends in ((client, server), (server, client))]
        try:
            for pumped in asyncio.as_completed(pumps):
                await pumped
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def _spend(self, count: int) -> None:
        self.use.bytes += count
        if self.use.bytes > self._max_bytes:
            raise DialRefusedError(f"this sandbox has used up its network_bytes of {self._max_bytes}")

    def _note(self, target: str, reason: str) -> None:
        self.use.refused += 1
        self.use.refusals.append(Refusal(target, reason))
        if self.use.refused <= LOGGED:
            more = "; further refusals are counted only" if self.use.refused == LOGGED else ""
            _log.warning("sandbox %s: %r was refused: %s%s", self._name, target, reason, more)

    async def _answer(self, client: Side, status: HTTPStatus, text: str) -> None:
        """Say what was wrong, unless something else was said already."""
        if self.use.refused > KEPT:
            await asyncio.sleep(PENALTY_S)
        if client.written:
            return
        body = f"whet: {text}.\n".encode()
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        client.writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await _hang_up(client)


async def _greeting(client: Side, first: bytes, host: str) -> bytes:
    """The first bytes of a tunnel, once they are known to be TLS for this host."""
    while True:
        try:
            named = server_name(first)
        except HelloError as error:
            raise DialRefusedError(f"a tunnel to {host} has to begin with TLS for {host}: {error}") from None
        if named == host:
            return first
        if named is not None:
            raise DialRefusedError(f"a tunnel to {host} has to begin with TLS for {host}, not for {named[:100]!r}")
        data = await client.read()
        if not data:
            raise DialRefusedError(f"a tunnel to {host} has to begin with TLS for {host}, and ended before that")
        first += data


async def _hang_up(client: Side) -> None:
    """Close in a way that lets the client read to the end: unread bytes would turn the close into a reset."""
    with contextlib.suppress(OSError):  # TimeoutError is one
        client.writer.write_eof()
        left = LINGER_BYTES
        async with asyncio.timeout(LINGER_S):
            while left > 0 and (data := await client.reader.read(CHUNK)):
                left -= len(data)


async def _readable(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def is_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(listener.fileno(), is_ready)
    try:
        await ready
    finally:
        loop.remove_reader(listener.fileno())


@functools.cache
def process_connections() -> Permits:
    """Connections of all sandboxes together: a quarter of the process's descriptors, two each, sandboxes in turn."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return Permits(max(16, min(files, 1 << 16) // 8))


# The name in a TLS ClientHello, so that a tunnel to an allowed host carries a conversation with that host. Pure.
#
# Many hosts share an address: without this, a tunnel to one site of a content network reaches every other. Follows RFC
# 8446 (ClientHello) and RFC 6066 (server_name); whatever is ambiguous is refused rather than guessed.

HELLO_BYTES = 16 * 1024
MAX_RECORDS = 8  # one is usual; each is parsed again when more bytes arrive
_HANDSHAKE, _CLIENT_HELLO = b"\x16", b"\x01"
_SERVER_NAME, _ENCRYPTED_HELLO = 0, 0xFE0D


class HelloError(Exception):
    """What a tunnel begins with is not a ClientHello that names one host in the clear."""


def server_name(data: bytes) -> str | None:
    """The host that a ClientHello names, in lower case; None while more bytes are needed. Raises HelloError."""
    hello = _handshake(data)
    return None if hello is None else _name(hello)


def _handshake(data: bytes) -> bytes | None:
    """The body of the first handshake message, from however many records carry it."""
    collected, position = b"", 0
    for _ in range(MAX_RECORDS):
        header = data[position : position + 5]
        if header[:1] not in (b"", _HANDSHAKE) or header[1:2] not in (b"", b"\x03"):
            raise HelloError("it does not begin with a TLS handshake")
        if len(header) < 5:
            return None
        length = int.from_bytes(header[3:5], "big")
        if not 0 < length <= HELLO_BYTES:
            raise HelloError("its first TLS record has an impossible length")
        collected += data[position + 5 : position + 5 + length]
        if collected[:1] not in (b"", _CLIENT_HELLO):
            raise HelloError("its first TLS message is not a ClientHello")
        if len(collected) >= 4:
            size = int.from_bytes(collected[1:4], "big")
            if size > HELLO_BYTES:
                raise HelloError(f"its ClientHello is longer than {HELLO_BYTES} bytes")
            if len(collected) >= 4 + size:
                return collected[4 : 4 + size]
        position += 5 + length
        if position > len(data):
            return None
    raise HelloError(f"its ClientHello is spread over more than {MAX_RECORDS} records")


def _name(hello: bytes) -> str:
    fields = _Fields(hello)
    fields.take(2 + 32)  # version, random
    for width in (1, 2, 1):  # session, cipher suites, compression
        fields.block(width)
    extensions = _Fields(fields.block(2)) if fields.left else _Fields(b"")
    names: list[bytes] = []
    while extensions.left:
        kind = extensions.number(2)
        body = _Fields(extensions.block(2))
        if kind == _ENCRYPTED_HELLO:
            raise HelloError("it hides the host it is for (encrypted ClientHello)")
        if kind == _SERVER_NAME:
            entries = _Fields(body.block(2))
            while entries.left:
                entries.take(1)
                names.append(entries.block(2))
    if fields.left:
        raise HelloError("its ClientHello has bytes that belong to nothing")
    if len(names) != 1:
        raise HelloError("its ClientHello does not name one host")
    return names[0].decode("ascii", "replace").lower()


class _Fields:
    """Length-prefixed fields of a message, in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def left(self) -> int:
        return len(self._data)

    def take(self, count: int) -> bytes:
        if count > len(self._data):
            raise HelloError("its ClientHello is torn")
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def block(self, width: int) -> bytes:
        return self.take(self.number(width))
