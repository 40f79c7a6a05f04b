"""The name in a TLS ClientHello, so that a tunnel to an allowed host carries a conversation with that host. Pure.

Many hosts share an address: without this, a tunnel to one site of a content network reaches every other. Follows RFC
8446 (ClientHello) and RFC 6066 (server_name); whatever is ambiguous is refused rather than guessed.
"""

from __future__ import annotations

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
