"""Which URLs and addresses a webhook may have."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from whet.errors import ConfigError
from whet.service.webhooks.addresses import AddressRefusedError, addresses_of, check_url, networks, target_of

REFUSED_TEXT = """
ftp://example.com/            gopher://example.com/        file:///etc/passwd           javascript:alert(1)
http://                       https:///path                example.com/hook             //example.com/hook
https://user@example.com/     https://user:pw@example.com/ https://@example.com/        https://example.com/#part
https://example.com:22/       https://example.com:25/      https://example.com:0/       https://example.com:65536/
https://example.com:x/        https://exa_mple.com/        https://-a.example.com/      https://example.com\\@evil.test/
https://2130706433/           https://0x7f000001/          https://127.1/               https://0177.0.0.1/
https://localhost/            https://LOCALHOST./          https://a.localhost/         http://[::1]/
http://127.0.0.1/             http://127.9.9.9:8080/       http://0.0.0.0/              http://10.0.0.1/
http://172.16.0.1/            http://192.168.1.1/          http://169.254.169.254/x     http://100.64.0.1/
http://100.100.100.200/       http://168.63.129.16/        http://192.0.0.192/          http://198.18.0.1/
http://224.0.0.1/             http://240.0.0.1/            http://255.255.255.255/      http://192.0.2.1/
http://[::]/                  http://[::ffff:127.0.0.1]/   http://[::ffff:8.8.8.8]/     http://[64:ff9b::7f00:1]/
http://[64:ff9b::808:808]/    http://[64:ff9b:1::1]/       http://[2002:7f00:1::]/      http://[2001:0:1::1]/
http://[fe80::1]/             http://[fe80::1%25eth0]/     http://[fc00::1]/            http://[fd00:ec2::254]/
http://[ff02::1]/             http://[::127.0.0.1]/        http://[fec0::1]/            http://[2001:db8::1]/
"""


@pytest.mark.parametrize(
    "url", [*REFUSED_TEXT.split(), "https://exam ple.com/", "https://example.com/\r\nX: y", "https://e\u0430.com/"]
)
def test_a_url_that_no_webhook_needs_is_refused(url: str) -> None:
    with pytest.raises(AddressRefusedError):
        check_url(url)


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("https://example.com", "example.com", "/"),
        ("http://example.com:80/a?b=c", "example.com", "/a?b=c"),
        ("https://Example.com:8443/a%20b", "example.com:8443", "/a%20b"),
        ("https://8.8.8.8/", "8.8.8.8", "/"),
        ("https://[2606:4700::1111]:9000/", "[2606:4700::1111]:9000", "/"),
        ("https://xn--bcher-kva.example./", "xn--bcher-kva.example.", "/"),
    ],
)
def test_a_public_url_is_accepted(url: str, authority: str, path: str) -> None:
    target = check_url(url)
    assert (target.authority, target.path) == (authority, path)


def resolved(*addresses: str, url: str = "https://example.com/", allowed: Sequence[str] = ()) -> list[str]:
    async def resolve(host: str, port: int) -> Sequence[str]:
        assert (host, port) == ("example.com", 443)
        return addresses

    return asyncio.run(addresses_of(target_of(url), resolve, networks(allowed)))


def test_each_address_of_a_name_has_to_be_public() -> None:
    assert resolved("8.8.8.8", "2606:4700::1111", "8.8.8.8") == ["8.8.8.8", "2606:4700::1111"]
    for one in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fe80::1%2", "not an address"):
        with pytest.raises(AddressRefusedError):
            resolved("8.8.8.8", one)
    with pytest.raises(AddressRefusedError, match="no address"):
        resolved()


def test_a_name_that_does_not_resolve_is_refused() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise OSError(-2, "Name or service not known")

    with pytest.raises(AddressRefusedError, match="does not resolve"):
        asyncio.run(addresses_of(target_of("https://example.com/"), resolve, ()))


def test_a_network_that_the_operator_allows_may_be_used_and_no_other() -> None:
    assert resolved("10.1.2.3", allowed=["10.1.0.0/16"]) == ["10.1.2.3"]
    assert check_url("http://10.1.2.3/", networks(["10.1.0.0/16"])).host == "10.1.2.3"
    for text in ("10.2.0.1", "127.0.0.1", "::ffff:10.1.2.3"):
        with pytest.raises(AddressRefusedError):
            resolved(text, allowed=["10.1.0.0/16"])
    with pytest.raises(ConfigError, match="--webhook-allow"):
        networks(["10.0.0.1/8"])
