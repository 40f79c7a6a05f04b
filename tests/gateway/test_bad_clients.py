"""Clients that stall, leave or never read: their place is given back, and others are served meanwhile."""

import asyncio
import http.client
import json
import socket
import threading
import time
import urllib.request

import pytest

BODY = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}).encode()


def connected(address):
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def request(length, body):
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode() + body


def ask(address):
    """In one write: a body that came later than its head could be too late on a busy machine."""
    with connected(address) as asking:
        asking.sendall(request(len(BODY), BODY))
        answer = http.client.HTTPResponse(asking)
        answer.begin()
        return json.load(answer)["choices"][0]["message"]["content"]


def in_flight(address):
    with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("whet_requests_in_flight ")))


def test_one_that_stalls_in_its_body_is_told_so_and_others_are_served(address, monkeypatch):
    monkeypatch.setattr("whet.gateway.bodies.BODY_S", 0.2)
    with connected(address) as stalled:
        stalled.sendall(request(len(BODY), BODY[:10]))
        assert ask(address) == "hello"
        assert b"408" in stalled.recv(100)
    assert in_flight(address) == 0


def test_one_that_leaves_in_its_body_gives_its_place_back(address):
    with connected(address) as leaving:
        leaving.sendall(request(len(BODY), BODY[:10]))
        assert ask(address) == "hello"
    while in_flight(address):
        pass
    assert ask(address) == "hello"


def test_one_that_never_reads_holds_no_place(address, model):
    model.answers = ["x" * 20_000_000]
    with connected(address) as deaf:
        deaf.sendall(request(len(BODY), BODY))
        while not model.asked:
            time.sleep(0.01)  # the server is a thread of this process
        assert [ask(address) for _ in range(3)] == ["hello"] * 3
        while in_flight(address):
            pass


def test_one_that_leaves_while_the_model_answers_ends_the_answer(address, gateway):
    begun, ended = threading.Event(), threading.Event()

    async def never(*args, **kwargs):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    gateway.models["scripted"].get_response = never
    with connected(address) as leaving:
        leaving.sendall(request(len(BODY), BODY))
        assert begun.wait(60)
    assert ended.wait(60)


@pytest.mark.parametrize(
    "nonsense", [b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 1000, b"A" * 100_000]
)
def test_what_is_no_http_is_no_trouble(address, nonsense):
    with connected(address) as odd:
        odd.sendall(nonsense)
    assert ask(address) == "hello"
