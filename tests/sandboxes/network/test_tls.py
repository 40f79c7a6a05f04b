"""The name in a ClientHello, with those that Python's own TLS library writes."""

from __future__ import annotations

import ssl
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.sandboxes.network.proxy import HelloError, server_name


def hello(name: str | None) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def records(body: bytes, size: int) -> bytes:
    """The same handshake message in records of `size` bytes."""
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"\x16\x03\x01" + struct.pack(">H", len(part)) + part for part in parts)


def made(extensions: bytes) -> bytes:
    body = b"\x03\x03" + bytes(32) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00"
    body += struct.pack(">H", len(extensions)) + extensions
    return records(b"\x01" + len(body).to_bytes(3, "big") + body, 1 << 14)


def names(*hosts: bytes) -> bytes:
    entries = b"".join(b"\x00" + struct.pack(">H", len(host)) + host for host in hosts)
    inner = struct.pack(">H", len(entries)) + entries
    return b"\x00\x00" + struct.pack(">H", len(inner)) + inner


def test_the_name_is_read_in_lower_case() -> None:
    assert server_name(hello("Files.Example.COM")) == "files.example.com"


def test_more_bytes_are_asked_for_until_the_name_is_there() -> None:
    whole = hello("example.com")
    assert [server_name(whole[:end]) for end in range(len(whole))] == [None] * len(whole)
    assert server_name(whole + b"and what follows") == "example.com"


def test_a_hello_in_several_records_is_put_together() -> None:
    assert server_name(records(hello("example.com")[5:], 100)) == "example.com"


def test_a_hello_in_a_thousand_records_is_refused() -> None:
    with pytest.raises(HelloError, match="spread over more than 8 records"):
        server_name(records(hello("example.com")[5:], 1))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"GET / HTTP/1.1\r\n", "does not begin with a TLS handshake"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not begin with a TLS handshake"),
        (b"\x16\x02\x00\x00\x10", "does not begin with a TLS handshake"),
        (b"\x16\x03\x01\xff\xff", "impossible length"),
        (b"\x16\x03\x01\x00\x04\x02\x00\x00\x00", "not a ClientHello"),
        (b"\x16\x03\x01\x00\x04\x01\xff\xff\xff", "longer than"),
        (hello(None), "does not name one host"),
        (made(b""), "does not name one host"),
        (made(names(b"good.com", b"evil.com")), "does not name one host"),
        (made(names(b"good.com") + names(b"evil.com")), "does not name one host"),
        (made(names(b"good.com") + b"\xfe\x0d\x00\x01x"), "hides the host"),
        (made(b"\x00\x00\x00\xff"), "torn"),
        (made(names(b"good.com")[:-3]), "torn"),
    ],
)
def test_what_names_no_single_host_in_the_clear_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(HelloError, match=what):
        server_name(data)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused_and_never_break_the_reader(tail: bytes) -> None:
    for data in (tail, b"\x16\x03\x01" + tail, hello_of(tail)):
        try:
            server_name(data)
        except HelloError:
            continue


def hello_of(body: bytes) -> bytes:
    return records(b"\x01" + len(body).to_bytes(3, "big") + body, 1 << 14)
