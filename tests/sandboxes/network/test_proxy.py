"""The allow-list proxy between real sockets: a client that may do anything, and servers on loopback.

The same from inside a sandbox, with hostile programs: tests/security/escape.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from whet.sandboxes.network import dial, proxy
from whet.sandboxes.network.dial import is_own_address

from .proxied import PAGE, Place, run, tunnel
from .test_tls import hello


def test_a_page_of_an_allowed_host_comes_back() -> None:
    async def script(there: Place) -> None:
        answer = await there.say(f"GET {there.url}/a?b=c HTTP/1.1\r\nHost: web.test:{there.port}\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\nhello")
        assert b"x-kept: yes" in answer.lower()
        assert b"keep-alive" not in answer.lower()
        assert there.server.heard[0].startswith(b"GET /a?b=c HTTP/1.1\r\n")
        assert (there.proxy.use.requests, there.proxy.use.refused) == (1, 0)
        assert there.proxy.use.bytes >= len(PAGE)

    run(script)


ORIGIN: dict[str, Any] = {"entries": (), "origin": "127.0.0.1:{port}"}


@pytest.mark.parametrize(
    "target", ["/a?b=c", "http://127.0.0.1:3128/a?b=c", "http://localhost:3128/a?b=c", "//host.test/a?b=c"]
)
def test_a_request_to_the_proxy_itself_goes_to_the_origin(target: str) -> None:
    async def script(there: Place) -> None:
        answer = await there.say(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:3128\r\nX-Api-Key: k\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        path = target.removeprefix("http://127.0.0.1:3128").removeprefix("http://localhost:3128")
        heard = there.server.heard[0].lower()
        assert heard.startswith(f"get {path} http/1.1\r\n".encode())
        assert b"x-api-key: k\r\n" in heard
        assert (there.proxy.use.requests, there.proxy.use.refused) == (1, 0)

    run(script, **ORIGIN)


@pytest.mark.parametrize(
    "target", ["http://web.test:{port}/", "http://127.0.0.1:{port}/", "http://127.0.0.1:3129/", "http://localhost/"]
)
def test_an_origin_opens_nothing_but_itself(target: str) -> None:
    async def script(there: Place) -> None:
        answer = await there.say(f"GET {target.format(port=there.port)} HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")
        assert answer.endswith(b"It may reach: http://127.0.0.1:3128.\n")
        assert there.server.heard == []

    run(script, **ORIGIN)


def test_request_to_the_proxy_without_origin_is_explained() -> None:
    async def script(there: Place) -> None:
        answer = await there.say("GET / HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"this is a proxy" in answer

    run(script)


def test_an_answer_of_the_origin_arrives_as_it_is_written() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n"

    async def script(there: Place) -> None:
        reader, writer = await there.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"first" in await reader.readuntil(b"first\r\n")  # the server has not ended its answer
        writer.close()

    run(script, head, closes=False, **ORIGIN)


def test_a_body_goes_through_by_length_and_in_chunks() -> None:
    async def script(there: Place) -> None:
        head = f"POST {there.url}/ HTTP/1.1\r\nHost: x\r\n"
        await there.say(f"{head}Content-Length: 4\r\n\r\n", "bo", "dy")
        await there.say(f"{head}Transfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n", "2\r\ndy\r\n0\r\n\r\n")
        assert there.server.heard[0].endswith(b"\r\n\r\nbody")
        assert b"body" in there.server.heard[1].replace(b"\r\n2\r\n", b"")

    run(script, b"HTTP/1.1 204 No Content\r\n\r\n", closes=False, idle_s=0.2)


def test_megabytes_come_back_whole() -> None:
    body = bytes(range(256)) * 8192
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    async def script(there: Place) -> None:
        heard = await there.say(f"GET {there.url}/ HTTP/1.1\r\nHost: x\r\n\r\n")
        assert heard.partition(b"\r\n\r\n")[2] == body

    run(script, answer, max_bytes=1 << 30)


def test_host_header_is_that_of_the_address() -> None:
    async def script(there: Place) -> None:
        await there.say(f"GET {there.url}/ HTTP/1.1\r\nHost: evil.test\r\nProxy-Authorization: Basic eDp5\r\n\r\n")
        heard = there.server.heard[0].lower()
        assert b"host: web.test:%d\r\n" % there.port in heard
        assert b"evil" not in heard
        assert b"proxy-authorization" not in heard

    run(script)


def test_nothing_behind_a_request_is_passed_on() -> None:
    async def script(there: Place) -> None:
        first = f"GET {there.url}/ HTTP/1.1\r\nHost: x\r\n\r\n"
        await there.say(first + "GET /smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n")
        assert len(there.server.heard) == 1
        assert b"smuggled" not in there.server.heard[0]

    run(script)


def test_a_tunnel_to_an_address_that_the_operator_named_carries_anything() -> None:
    async def script(there: Place) -> None:
        answer = await there.say(tunnel(there) + "ping")
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\npong"
        assert there.server.heard == [b"ping"]

    run(script, b"pong")


def test_an_end_of_one_direction_leaves_the_other_open() -> None:
    async def script(there: Place) -> None:
        reader, writer = await there.connect()
        writer.write(tunnel(there).encode() + b"ping")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(4) == b"pong"
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()

    run(script, b"pong", closes=False)


@pytest.mark.parametrize(
    ("request_", "status", "why"),
    [
        ("GET http://evil.test/ HTTP/1.1\r\nHost: web.test\r\n\r\n", 403, "may not reach evil.test, port 80"),
        ("GET http://web.test/ HTTP/1.1\r\nHost: x\r\n\r\n", 403, "may not reach web.test, port 80"),
        ("GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n", 403, "may not reach 127.0.0.1"),
        ("GET http://[::ffff:127.0.0.1]:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n", 403, "may not reach 127.0.0.1"),
        ("GET http://2130706433:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "no host and port"),
        ("GET http://web.test:{port}@evil.test/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "this is a proxy"),
        ("GET http://evil.test#@web.test:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "this is a proxy"),
        ("GET http://evil.test\\@web.test:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "this is a proxy"),
        ("GET http://web.test:{port}:80/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "no host and port"),
        ("GET https://web.test/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "https goes through a tunnel"),
        ("GET ftp://web.test/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "this is a proxy"),
        ("GET / HTTP/1.1\r\nHost: web.test:{port}\r\n\r\n", 400, "this is a proxy"),
        ("GET http://web.test:{port}/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "Host"),
        ("CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: x\r\n\r\n", 403, "may not reach 169.254.169.254"),
        ("CONNECT [fd00:ec2::254]:80 HTTP/1.1\r\nHost: x\r\n\r\n", 403, "may not reach fd00:ec2::254"),
        ("CONNECT web.test:22 HTTP/1.1\r\nHost: x\r\n\r\n", 403, "may not reach web.test, port 22"),
        ("CONNECT web.test HTTP/1.1\r\nHost: x\r\n\r\n", 400, "no host and port"),
        ("CONNECT http://web.test:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "no host and port"),
        ("CONNECT web.test:{port} HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 400, "has no body"),
        (
            "POST http://web.test:{port}/ HTTP/1.1\r\nHost:x\r\nContent-Length: 4\r\nTransfer-Encoding:chunked\r\n\r\n",
            400,
            "both a length and chunks",
        ),
        (
            "POST http://web.test:{port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n",
            400,
            "Content-Length",
        ),
        ("GET http://web.test:{port}/ HTTP/1.1\r\nHost: x\r\nA: b\rX: c\r\n\r\n", 400, "header"),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, ""),
        ("GET http://web.test:{port}/" + "a" * 20_000, 400, ""),
    ],
)
def test_what_is_not_allowed_is_refused_says_why_and_is_kept(request_: str, status: int, why: str) -> None:
    async def script(there: Place) -> None:
        answer = (await there.say(request_.replace("{port}", str(there.port)))).decode()
        assert answer.startswith(f"HTTP/1.1 {status} ")
        assert "\r\n\r\nwhet: " in answer
        assert why in answer
        assert there.server.heard in ([], [b""])
        assert (there.proxy.use.requests, there.proxy.use.refused) == (0, 1)
        assert why in there.proxy.use.refusals[0].reason

    run(script)


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["1.1.1.1", "10.0.0.1"], ["169.254.169.254"], ["fe80::1"]])
def test_a_name_that_leads_to_an_address_inside_is_refused(addresses: list[str]) -> None:
    async def script(there: Place) -> None:
        answer = await there.say(f"GET http://rebind.example:{there.port}/ HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert f"rebind.example leads to {addresses[-1]}".encode() in answer
        assert there.server.heard == []

    run(script, entries=("rebind.example:{port}",), lookup=lambda host, port: addresses)


def test_a_name_is_asked_for_once_and_the_judged_address_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []
    monkeypatch.setattr(dial, "address_problem", lambda address: judged.append(str(address)))
    monkeypatch.setattr(dial, "is_own_address", lambda address: False)
    answers = [["127.0.0.1"], ["127.0.0.2"]]

    async def script(there: Place) -> None:
        answer = await there.say(f"GET http://rebind.example:{there.port}/ HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.endswith(b"hello")
        assert (judged, len(answers)) == (["127.0.0.1"], 1)

    run(script, entries=("rebind.example:{port}",), lookup=lambda host, port: answers.pop(0))


def test_the_machines_own_addresses_are_known() -> None:
    assert is_own_address(dial.ipaddress.ip_address("127.0.0.1"))
    assert not is_own_address(dial.ipaddress.ip_address("192.0.2.7"))


def test_unreachable_host_is_a_failure_not_a_refusal() -> None:
    async def script(there: Place) -> None:
        for host, status in (("absent.invalid", b"502"), (f"web.test:{there.port}", b"502")):
            answer = await there.say(f"GET http://{host}/ HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer.split()[1] == status
        assert (there.proxy.use.refused, there.proxy.use.failed) == (0, 2)

    run(script, b"HTTP/1.1 nonsense\r\n\r\n", entries=("web.test=127.0.0.1:{port}", "absent.invalid"))


BY_NAME: dict[str, Any] = {"entries": ("good.example:{port}",), "lookup": lambda host, port: ["127.0.0.1"]}


class TestTunnelsByName:
    """Loopback stands for a public address, which no test can reach."""

    @pytest.fixture(autouse=True)
    def loopback_is_public(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dial, "address_problem", lambda address: None)
        monkeypatch.setattr(dial, "is_own_address", lambda address: False)

    def test_tls_tunnel_for_its_host_is_forwarded_unchanged(self) -> None:
        first = hello("good.example")

        async def script(there: Place) -> None:
            head = f"CONNECT good.example:{there.port} HTTP/1.1\r\nHost: x\r\n\r\n"
            assert (await there.say(head, first[:7], first[7:])).endswith(b"pong")
            assert there.server.heard == [first]

        run(script, b"pong", **BY_NAME, closes=False, idle_s=0.3)

    @pytest.mark.parametrize(
        ("first", "why"),
        [
            (hello("evil.example"), "not for 'evil.example'"),
            (hello(None), "does not name one host"),
            (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "does not begin with a TLS handshake"),
            (b"SSH-2.0-client\r\n", "does not begin with a TLS handshake"),
        ],
    )
    def test_a_tunnel_for_anybody_else_carries_nothing(self, first: bytes, why: str) -> None:
        async def script(there: Place) -> None:
            head = f"CONNECT good.example:{there.port} HTTP/1.1\r\nHost: x\r\n\r\n"
            assert (await there.say(head, first)).partition(b"\r\n\r\n")[2] == b""
            assert there.server.heard in ([], [b""])
            assert why in there.proxy.use.refusals[0].reason

        run(script, b"pong", **BY_NAME)

    def test_a_tunnel_that_says_nothing_is_ended(self) -> None:
        async def script(there: Place) -> None:
            await there.say(f"CONNECT good.example:{there.port} HTTP/1.1\r\nHost: x\r\n\r\n")
            assert there.server.heard in ([], [b""])

        run(script, b"pong", **BY_NAME, head_s=0.1)


def test_the_bytes_of_a_sandbox_are_counted_and_end() -> None:
    async def script(there: Place) -> None:
        request = f"GET {there.url}/ HTTP/1.1\r\nHost: x\r\n\r\n"
        torn = await there.say(request)
        assert len(torn) < 100_000
        answer = await there.say(request)
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"used up its network_bytes of 50000" in answer

    run(script, b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000), max_bytes=50_000)


def test_connections_beyond_the_limit_wait_for_their_turn() -> None:
    async def script(there: Place) -> None:
        silent = [await there.connect() for _ in range(2)]
        waiting = asyncio.ensure_future(there.say(f"GET {there.url}/ HTTP/1.1\r\nHost: x\r\n\r\n"))
        while there.proxy.connections < 2:
            await asyncio.sleep(0)
        assert not waiting.done()
        silent[0][1].close()
        assert (await waiting).endswith(b"hello")
        silent[1][1].close()

    run(script, connections=2)


def test_a_head_that_drips_in_is_cut_off() -> None:
    async def script(there: Place) -> None:
        reader, writer = await there.connect()
        writer.write(f"GET {there.url}/ HTTP/1.1\r\nHost: x\r\nX: ".encode())
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        assert there.proxy.use.refusals[0].reason == "no complete request arrived in time"
        writer.close()

    run(script, head_s=0.1)


def test_a_server_that_says_nothing_is_given_up() -> None:
    async def script(there: Place) -> None:
        answer = await there.say(f"GET {there.url}/ HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 504 ")

    run(script, b"", closes=False, idle_s=0.1)


def test_refusals_are_logged_a_few_times_and_counted_always(caplog: pytest.LogCaptureFixture) -> None:
    async def script(there: Place) -> None:
        for number in range(6):
            await there.say(f"GET http://evil{number}.test/ HTTP/1.1\r\nHost: x\r\n\r\n")
        assert there.proxy.use.refused == 6

    run(script)
    messages = [record.getMessage() for record in caplog.records if record.name == proxy.__name__]
    assert len(messages) == proxy.LOGGED
    assert "sandbox box: 'http://evil0.test/' was refused: this sandbox may not reach evil0.test" in messages[0]
    assert messages[-1].endswith("further refusals are counted only")


def test_closing_the_proxy_ends_its_connections() -> None:
    async def script(there: Place) -> None:
        reader, writer = await there.connect()
        writer.write(tunnel(there).encode())
        await reader.readuntil(b"\r\n\r\n")
        await there.proxy.close()
        assert await reader.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await there.connect()
        writer.close()

    run(script, b"pong")


def test_connection_that_is_cancelled_before_its_first_step_is_closed() -> None:
    async def script(there: Place) -> None:
        reader, writer = await there.connect()
        while not there.proxy.connections:
            await asyncio.sleep(0)
        await there.proxy.close()  # cancels the connection before its first step
        assert (
            await asyncio.wait_for(reader.read(), 30),
            there.proxy.connections,
            proxy.process_connections().taken,
        ) == (b"", 0, 0)
        writer.close()

    run(script)
