"""Addresses of Ray clusters: which spellings there are, and whether something listens there, within seconds."""

from __future__ import annotations

import socket

from whet.errors import ConfigError
from whet.rl.cluster.nodes import AUTO, LOCAL

CONNECTS_WITHIN_S = 5.0
SPELLINGS = f'"{AUTO}" (the cluster of this machine), "{LOCAL}" (one of this machine alone, for the run) or host:6379'


def check_address(address: str) -> None:
    """Raise `ConfigError` for what is no address of a cluster."""
    if address in (LOCAL, AUTO):
        return
    if "://" in address:
        raise ConfigError(
            f"ray_address = {address!r}: a run is on a node of its cluster, without Ray's client. Start it there, with "
            f'"{AUTO}".'
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"ray_address = {address!r} is no address of a Ray cluster. Use {SPELLINGS}.")
    if host in ("localhost", "127.0.0.1", "[::1]"):
        raise ConfigError(
            f"ray_address = {address!r}: Ray takes the address of a network interface in its place. Use the one that "
            f'`ray start` printed, or "{AUTO}".'
        )


def check_reachable(address: str) -> None:
    """Raise `ConfigError` where nothing listens at `host:port`. Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECTS_WITHIN_S).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address}: {error.strerror or error}. Start one with `ray start --head`, or "
            f"use {SPELLINGS}."
        ) from None
