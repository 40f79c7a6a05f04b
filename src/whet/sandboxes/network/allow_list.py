"""Which hosts a sandbox may reach: the list an operator writes, and which addresses a name may lead to. Pure.

An entry names hosts, and never more than it says:

    pypi.org              this host, ports 80 and 443
    *.example.com         every host below example.com, not example.com itself; ports 80 and 443
    example.com:8443      this host, this port only; also *.example.com:8443
    10.0.0.5:3128         this address and port; the only way to reach an address that is not public
    mirror.test=10.0.0.5:3128   a name that the operator gives to this address and port; no DNS lookup

Apart from the list there may be an *origin*, one address and port that is reached at the proxy's own address inside,
by programs that know nothing of proxies.

A name without an address of its own is resolved on the host and must lead to public addresses only, whatever the
name server says: see `address_problem`.
"""

from __future__ import annotations

import ipaddress
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from whet.errors import ConfigError

PORTS = frozenset({80, 443})
KEPT = 100  # refusals of a sandbox
PROXY_HOST, PROXY_PORT = "127.0.0.1", 3128  # inside, where nothing else listens yet
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*\Z")
_NUMERIC = re.compile(r"(^|\.)(\d+|0x[0-9a-f]*)\Z")  # such names are addresses to some resolvers: 127.1, 0x7f000001
_PORT = re.compile(r"[0-9]{1,5}\Z", re.ASCII)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# What Python's own judgement leaves out, some of it depending on the version.
_SPECIAL = {
    ipaddress.ip_network("168.63.129.16/32"): "a cloud's metadata service",  # Azure's, with a public address
    ipaddress.ip_network("192.0.0.0/24"): "a cloud's metadata service",  # Oracle's among them
    ipaddress.ip_network("192.88.99.0/24"): "a tunnel to other networks",
    ipaddress.ip_network("2002::/16"): "a tunnel to other networks",
    ipaddress.ip_network("fec0::/10"): "a private or reserved network",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry, understood."""

    text: str
    host: str  # a name, the part behind "*", or an address in its canonical form
    ports: frozenset[int]
    address: Address | None = None  # named by the operator: nothing is resolved and nothing is checked

    def covers(self, host: str, port: int) -> bool:
        if port not in self.ports:
            return False
        return host.endswith(self.host) and host != self.host if self.host.startswith(".") else host == self.host


@dataclass(frozen=True, slots=True)
class AllowList:
    """The rules of one sandbox."""

    rules: tuple[Rule, ...]

    @classmethod
    def parse(cls, entries: Iterable[str]) -> AllowList:
        """Raises ConfigError that names the entry and how to write it."""
        if isinstance(entries, str):
            raise ConfigError(f"sandbox: network={entries!r} should be a list of hosts: network=[{entries!r}].")
        return cls(tuple(_parse(entry) for entry in entries))

    def rule_for(self, host: str, port: int) -> Rule | None:
        """The rule that lets a canonical host and port through; one with an address before one without."""
        covering = [rule for rule in self.rules if rule.covers(host, port)]
        return min(covering, key=lambda rule: rule.address is None, default=None)

    def variables(self) -> dict[str, str]:
        """What most programs read to find the proxy. Servers inside the sandbox itself are reached without it."""
        url = f"http://{PROXY_HOST}:{PROXY_PORT}"
        named = {rule.host for rule in self.rules}
        inside = ",".join(host for host in ("localhost", "127.0.0.1", "::1") if host not in named)
        variables = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": inside}
        return {**variables, **{name.lower(): value for name, value in variables.items()}, "NODE_USE_ENV_PROXY": "1"}


def parse_origin(entry: str) -> tuple[Rule, int]:
    """The address that an origin names, as a rule, and its port. Raises ConfigError."""
    text, port = split_port(entry) or ("", None)
    address = _address(canonical_host(text) or "")
    if address is None or port is None:
        raise ConfigError(f"sandbox: origin={entry!r} should be an address and a port, as in '127.0.0.1:8080'.")
    return Rule(entry, str(address), frozenset({port}), address), port


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was not let through. `target` is what the code wrote: treat it as hostile."""

    target: str
    reason: str


@dataclass(slots=True)
class NetworkUse:
    """What a sandbox has done with its network."""

    requests: int = 0  # let through
    refused: int = 0
    failed: int = 0  # let through, and the server did not answer as it should
    bytes: int = 0  # to and from servers
    refusals: deque[Refusal] = field(default_factory=lambda: deque(maxlen=KEPT))  # the latest


def canonical_host(text: str) -> str | None:
    """A host as rules know it: lower case, no final dot, addresses in one spelling; None where it is no host."""
    bracketed = text.startswith("[") and text.endswith("]")
    if bracketed != (":" in text):
        return None
    text = text[1:-1] if bracketed else text
    address = _address(text)
    if address is not None:
        return str(address)
    name = text.lower().removesuffix(".")
    return name if _NAME.match(name) and not _NUMERIC.search(name) else None


def split_port(text: str) -> tuple[str, int | None] | None:
    """("host", port or None); None where there is something else behind the host."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text, None
    if not _PORT.match(port) or not 0 < int(port) < 65536:
        return None
    return host, int(port)


def address_problem(address: Address) -> str | None:
    """Why a name must not lead to this address, or None: only unicast addresses of the public internet are left.

    An IPv6 address that represents an IPv4 one (mapped, or translated by NAT64) is checked as that one.
    """
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address_problem(address.ipv4_mapped)
        if address in _NAT64:
            return address_problem(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address.is_loopback or address.is_unspecified:
        return "this machine"
    if address.is_link_local:
        return "a link-local address, where clouds keep their metadata"
    for network, what in _SPECIAL.items():
        if address in network:
            return what
    if address.is_multicast:
        return "a multicast address"
    if not address.is_global or address.is_reserved:
        return "a private or reserved network"
    return None


def _address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return None if address.scope_id else address.ipv4_mapped or address
    return address


def _parse(entry: str) -> Rule:
    if not isinstance(entry, str) or not entry:
        raise ConfigError(f"sandbox: network has {entry!r}, which is no host. Write it as 'pypi.org'.")
    name, pinned, target = entry.rpartition("=")
    split = split_port(target)
    if split is None or "/" in entry or "@" in entry:
        raise _mistake(entry, "it should be a host or host:port, without a scheme, a user or a path")
    text, port = split
    ports = PORTS if port is None else frozenset({port})
    wild = text.startswith("*.")
    host = canonical_host(text.removeprefix("*."))
    if "*" in text and (not wild or host is None or "." not in host):
        raise _mistake(entry, "'*' is allowed only in front of a name of two parts or more, as in '*.example.com'")
    if host is None:
        hint = "it is no host name or address; an IPv6 address goes in brackets"
        raise _mistake(entry, hint if text.isascii() else "a name outside ASCII is written in its xn-- form")
    address = _address(host)
    if pinned:
        alias = canonical_host(name)
        if address is None or port is None or alias is None or _address(alias) is not None:
            raise _mistake(
                entry, "a name of your own is given to an address and a port, as in 'mirror.test=10.0.0.5:80'"
            )
        return Rule(entry, alias, ports, address)
    if wild:
        if address is not None:
            raise _mistake(entry, "'*' is allowed only in front of a name")
        return Rule(entry, f".{host}", ports)
    if address is not None and port is None and (problem := address_problem(address)) is not None:
        spelled = f"[{host}]" if ":" in host else host
        raise _mistake(entry, f"it is {problem}; name the port as well to allow it, as in '{spelled}:8080'")
    if host == "localhost" or host.endswith(".localhost"):
        raise _mistake(entry, "it is this machine; name its address and port to allow it, as in '127.0.0.1:8080'")
    return Rule(entry, host, ports, address)


def _mistake(entry: str, what: str) -> ConfigError:
    return ConfigError(f"sandbox: network has {entry!r}: {what}.")
