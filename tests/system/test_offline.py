"""`--offline`: a process of its own, since going offline cannot be undone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from whet.system.offline import is_loopback

PROGRAM = """
import asyncio, socket, sys
from whet.system.offline import OfflineError, go_offline

go_offline()
listening = socket.create_server(("127.0.0.1", 0))
socket.create_connection(listening.getsockname()).close()
socket.getaddrinfo("localhost", 80)
print("loopback")

async def dial():
    await asyncio.open_connection("10.255.255.1", 80)

for attempt in (
    lambda: socket.create_connection(("10.255.255.1", 80)),
    lambda: socket.getaddrinfo("example.org", 80),
    lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("10.255.255.1", 53)),
    lambda: asyncio.run(dial()),
):
    try:
        attempt()
    except OfflineError as error:
        print(error)

import huggingface_hub.constants
print(huggingface_hub.constants.HF_HUB_OFFLINE)
"""


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_only_this_machine_is_reached_and_the_hub_library_knows() -> None:
    assert run(PROGRAM).splitlines() == [
        "loopback",
        "--offline: 10.255.255.1 is not on this machine",
        "--offline: example.org is not on this machine",
        "--offline: 10.255.255.1 is not on this machine",
        "--offline: 10.255.255.1 is not on this machine",
        "True",
    ]


def test_a_hub_library_that_was_imported_before_is_not_trusted() -> None:
    program = (
        "import huggingface_hub.constants\n"
        "from whet.system.offline import go_offline\n"
        "from whet.errors import WhetError\n"
        "try:\n    go_offline()\nexcept WhetError as error:\n    print(error)\n"
    )
    assert run(program).startswith("offline: huggingface_hub was imported before")


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
        ("10.0.0.1", False),
        ("::ffff:8.8.8.8", False),
        ("", False),
    ],
)
def test_a_host_is_here_only_if_it_is_loopback(host: str, here: bool) -> None:
    assert is_loopback(host) is here
