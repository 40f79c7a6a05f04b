"""`python -m whet.service.runner.network DESCRIPTOR PID BEGAN ENTRY...`: the way out of a run's own network.

A run that is isolated has a loopback interface of its own and no other. Its gate opens a socket that listens there, and
this process, on the machine's side, serves it with the proxy of the sandboxes (`sandboxes/network/`): to all public
addresses, and to what the operator allows besides. It ends with the run's process, and not with its shim.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from whet.sandboxes.bubblewrap.host import raise_open_files
from whet.sandboxes.network.allow_list import AllowList, Rule, address_problem
from whet.sandboxes.network.dial import Dialer, is_own_address
from whet.sandboxes.network.proxy import AllowListProxy
from whet.system.children import began, undumpable

MACHINE = "machine"
"""As the only entry: runs share the network of the machine."""
CONNECTIONS = 256
IDLE_S = 3600.0
"""Without a byte either way: an endpoint may think for long before its first one."""
LOOK_S = 1.0
_PUBLIC = Rule("public addresses, and what the operator allows (whet service runner --network)", "", frozenset())
"""Covers nothing; it is what a refusal says."""


@dataclass(frozen=True, slots=True)
class PublicHosts(AllowList):
    """Every public host, at any port, and the rules of the operator."""

    def rule_for(self, host: str, port: int) -> Rule | None:
        rule = AllowList.rule_for(self, host, port)
        if rule is not None:
            return rule
        try:
            address = ipaddress.ip_address(host)
        except ValueError:  # a name, whose addresses are looked at once they are known
            return Rule("public addresses", host, frozenset({port}))
        if address_problem(address) or is_own_address(address):
            return None
        return Rule("public addresses", host, frozenset({port}), address)


def allowed(entries: Sequence[str]) -> AllowList | None:
    """What runs may reach; None for the machine's own network. Raises `ConfigError`."""
    return None if MACHINE in entries else PublicHosts.parse(entries)


def variables() -> dict[str, str]:
    """Of a run with a network of its own, for its HTTP clients and for engines that look for an address."""
    return {**AllowList(()).variables(), "VLLM_HOST_IP": "127.0.0.1"}


async def serve(listening: socket.socket, pid: int, since: str, entries: Sequence[str]) -> None:
    """Until the process is gone."""
    dialer = Dialer(PublicHosts((_PUBLIC, *AllowList.parse(entries).rules)))
    proxy = AllowListProxy(f"of process {pid}", listening, dialer, CONNECTIONS, sys.maxsize, idle_s=IDLE_S)
    while began(pid) == since:
        await asyncio.sleep(LOOK_S)
    await proxy.close()


if __name__ == "__main__":
    undumpable()
    raise_open_files()
    socket_number, process, process_began, *rest = sys.argv[1:]
    asyncio.run(serve(socket.socket(fileno=int(socket_number)), int(process), process_began, rest))
