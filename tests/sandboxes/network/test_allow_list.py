"""What an allow-list lets through, how a mistake in it is told, and which addresses a name must not lead to."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import ConfigError
from whet.sandboxes.network.allow_list import AllowList, address_problem, canonical_host, split_port
from whet.sandboxes.protocol import SandboxSpec


def allows(entry: str, host: str, port: int) -> bool:
    canonical = canonical_host(host)
    return canonical is not None and AllowList.parse([entry]).rule_for(canonical, port) is not None


@pytest.mark.parametrize(
    ("entry", "host", "port", "expected"),
    [
        ("pypi.org", "pypi.org", 443, True),
        ("pypi.org", "PyPI.org.", 80, True),
        ("PyPI.org.", "pypi.org", 443, True),
        ("pypi.org", "pypi.org", 22, False),
        ("pypi.org", "evil-pypi.org", 443, False),
        ("pypi.org", "pypi.org.evil.com", 443, False),
        ("pypi.org", "system/files.pypi.org", 443, False),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "evilexample.com", 443, False),
        ("*.example.com:8443", "a.example.com", 8443, True),
        ("*.example.com:8443", "a.example.com", 443, False),
        ("example.com:8443", "example.com", 443, False),
        ("127.0.0.1:8080", "127.0.0.1", 8080, True),
        ("127.0.0.1:8080", "127.0.0.1", 80, False),
        ("127.0.0.1:8080", "[::ffff:127.0.0.1]", 8080, True),
        ("127.0.0.1:8080", "127.1", 8080, False),
        ("127.0.0.1:8080", "2130706433", 8080, False),
        ("[::1]:8080", "[0:0:0:0:0:0:0:1]", 8080, True),
        ("1.1.1.1", "1.1.1.1", 443, True),
        ("mirror.test=10.0.0.5:3128", "mirror.test", 3128, True),
        ("mirror.test=10.0.0.5:3128", "10.0.0.5", 3128, False),
    ],
)
def test_an_entry_covers_what_it_names_and_nothing_more(entry: str, host: str, port: int, expected: bool) -> None:
    assert allows(entry, host, port) is expected


@pytest.mark.parametrize("entry", ["127.0.0.1", "web.test:80", "a=127.0.0.1:80", "http://127.0.0.1:80", "*:80", ""])
def test_an_origin_is_an_address_and_a_port(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"origin='.*' should be an address and a port, as in '127.0.0.1:8080'"):
        SandboxSpec(origin=entry)
    assert SandboxSpec(origin="[::1]:80").has_network


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("https://pypi.org/simple", "without a scheme"),
        ("user@pypi.org", "without a scheme, a user"),
        ("pypi.org:0", "host or host:port"),
        ("pypi.org:66000", "host or host:port"),
        ("pypi.org:\uff18\uff10", "host or host:port"),
        ("*", "is allowed only in front of a name of two parts"),
        ("*.com", "is allowed only in front of a name of two parts"),
        ("pypi.*.org", "is allowed only in front of a name"),
        ("*.10.0.0.1", "is allowed only in front of a name"),
        ("10.0.0.5", r"private or reserved network; name the port as well to allow it, as in '10\.0\.0\.5:8080'"),
        ("169.254.169.254", "link-local address, where clouds keep their metadata; name the port"),
        ("[::1]", r"this machine; name the port as well to allow it, as in '\[::1\]:8080'"),
        ("::1", "an IPv6 address goes in brackets"),
        ("127.1", "no host name or address"),
        ("0x7f000001", "no host name or address"),
        ("localhost:8080", r"this machine; name its address and port to allow it, as in '127\.0\.0\.1:8080'"),
        ("mirror.test=10.0.0.5", "is given to an address and a port"),
        ("mirror.test=other.test:80", "is given to an address and a port"),
        ("bücher.example", "written in its xn-- form"),
        ("two words", "no host name or address"),
        ("", "no host"),
        (7, "7, which is no host"),
    ],
)
def test_a_mistake_in_an_entry_is_named_with_what_to_write(entry: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        SandboxSpec(network=[entry])


def test_a_string_in_place_of_a_list_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"network=\['pypi\.org'\]"):
        SandboxSpec(network="pypi.org")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "100.100.100.200",
        "169.254.169.254",
        "168.63.129.16",
        "192.0.0.192",
        "192.0.2.1",
        "198.18.0.1",
        "203.0.113.1",
        "192.88.99.1",
        "224.0.0.1",
        "239.1.1.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:0:127.0.0.1",
        "64:ff9b::127.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2001:0:1::1",
        "2001:db8::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ],
)
def test_a_name_must_not_lead_to(address: str) -> None:
    assert address_problem(ipaddress.ip_address(address)) is not None


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]
)
def test_a_name_may_lead_to_the_public_internet(address: str) -> None:
    assert address_problem(ipaddress.ip_address(address)) is None


@given(st.ip_addresses(v=4))
def test_an_address_in_the_clothes_of_ipv6_is_judged_as_itself(address: ipaddress.IPv4Address) -> None:
    for prefix in ("::ffff:", "64:ff9b::"):
        assert address_problem(ipaddress.ip_address(f"{prefix}{address}")) == address_problem(address)


@given(st.text(max_size=40))
def test_a_canonical_host_is_its_own_canonical_form(text: str) -> None:
    host = canonical_host(text)
    if host is not None:
        assert canonical_host(f"[{host}]" if ":" in host else host) == host
        assert host.isascii()
        assert not set(host) & set(" /\\@#?\r\n\0%")


def test_a_port_is_split_off_without_guessing() -> None:
    assert split_port("a.b:80") == ("a.b", 80)
    assert split_port("[::1]:80") == ("[::1]", 80)
    assert split_port("[::1]") == ("[::1]", None)
    assert [split_port(f"a.b:{port}") for port in ("", "0", "65536", "+80", "8 0", "٨٠")] == [None] * 6
