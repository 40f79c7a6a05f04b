"""A real server in a process of its own, and traffic made to bring it down: it answers, and blames the request."""

import contextlib
import importlib.util
import json
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("served", Path(__file__).parent / "served.py")
served = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(served)

CHAT = "/v1/chat/completions"
OK = json.dumps({"model": "whet/tiny", **served.VALID[CHAT]}).encode()
MESSAGES = b'{"model": "whet/tiny", "max_tokens": 1, "messages": ['


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Port and output of a server that loads adapters, may open few files and answers a further host name."""
    adapters = str(tmp_path_factory.mktemp("adapters"))
    with served.served("--adapters-from", adapters, "--allow-host", "Models.Example", files=400) as serving:
        yield serving


@contextlib.contextmanager
def asking_for_health(port):
    """What `/health` answers meanwhile: all statuses, each asked for on a connection of its own."""
    statuses, over = [], threading.Event()

    def ask():
        while not over.is_set():
            statuses.append(served.ask(port)[0])
            over.wait(0.01)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield statuses
    finally:
        over.set()
        asking.join()
    assert set(statuses) == {200}


def fuzz(server, seed, count):
    port, lines = server
    requests = served.odd_requests(seed, count)
    with asking_for_health(port):
        answers = served.answers_to(port, requests)
    failed = [(request, answer) for request, answer in zip(requests, answers, strict=True) if answer[0] >= 500]
    assert not failed, failed[:3]
    assert not [answer for status, answer in answers if status == 200 and b'"server_error"' in answer]
    assert not [line for line in lines if "Traceback" in line]
    statuses = Counter(status for status, _ in answers)
    assert statuses[200] > count // 10 < statuses[400]


def test_odd_numbers_in_concurrent_requests_are_no_failure_of_the_server(server):
    fuzz(server, 0, 200)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_twenty_thousand_odd_requests_are_no_failure_of_the_server(server):
    fuzz(server, 1, 20_000)


@pytest.mark.parametrize(
    "odd", [{"top_k": 2**63}, {"temperature": 1e-39}, {"seed": 2**63}, {"stop": ["a"] * 300}, {"max_tokens": 2**63}]
)
def test_an_odd_request_leaves_concurrent_ones_as_they_are(server, odd):
    port, _ = server
    usual = [(CHAT, OK)] * 15
    answers = served.answers_to(port, [*usual, (CHAT, json.dumps({**json.loads(OK), **odd}).encode())])
    assert [status for status, _ in answers[:-1]] == [200] * 15
    status, body = answers[-1]
    assert status == (200 if "temperature" in odd else 400)
    assert status == 200 or next(iter(odd)) in json.loads(body)["error"]["message"]


def test_health_with_more_half_open_requests_than_files(server):
    port, lines = server
    with contextlib.ExitStack() as open_ones:
        for _ in range(1100):
            slow = open_ones.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX: ")
        with asking_for_health(port) as statuses:
            while len(statuses) < 20:
                time.sleep(0.01)  # another thread of this process asks
        assert served.ask(port, CHAT, OK)[0] == 200
        assert not [line for line in lines if "Traceback" in line or "Too many open files" in line]


def test_a_request_whose_head_is_too_large_is_refused(server):
    with socket.create_connection(("127.0.0.1", server[0]), 60) as asking:
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                asking.sendall(b"GET /health HTTP/1.1\r\n" if _ == 0 else b"X-Y: " + b"z" * 4000 + b"\r\n")
        with contextlib.suppress(ConnectionError):
            assert asking.recv(100).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (MESSAGES + b"[]," * 20_000_000 + b"[]]}", 413),
        (MESSAGES + b"[]," * 8_000_000 + b"[]]}", 413),
        (MESSAGES + b"[]," * 200_000 + b"[]]}", 400),
        (MESSAGES + b'{"role": "user", "content": "' + b"\\n" * 15_000_000 + b'"}]}', 400),
        (MESSAGES + b"[" * 3_000_000, 400),
        (MESSAGES + b'{"role": "user", "content": "' + b"a, " * 100_000 + b'"}]}', 400),
    ],
    ids=["60 MB", "many values", "too many values", "escapes", "deep", "a long prompt"],
)
def test_a_large_body_is_refused_while_others_are_answered(server, body, status):
    port, _ = server
    with asking_for_health(port):
        assert served.ask(port, CHAT, body)[0] == status


def test_a_large_body_says_what_a_small_one_says(server):
    prompt = [{"type": "text", "text": ", [{"} for _ in range(30_000)]
    body = {**json.loads(OK), "messages": [{"role": "user", "content": "\ud800é"}], "unknown": prompt}
    status, answer = served.ask(server[0], CHAT, json.dumps(body).encode())
    small = {**json.loads(OK), "messages": [{"role": "user", "content": "\ud800é"}]}
    tokens = json.loads(served.ask(server[0], CHAT, json.dumps(small).encode())[1])["usage"]["prompt_tokens"]
    assert (status, json.loads(answer)["usage"]["prompt_tokens"]) == (200, tokens)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "rebound.example"}, 403),
        ({"Host": "localhost.example:8000"}, 403),
        ({"Host": "192.0.2.1"}, 403),
        ({"Host": "a b"}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Origin": "https://page.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_requests_of_pages_of_other_sites_are_refused(server, headers, status):
    port, _ = server
    assert served.ask(port, CHAT, OK, {**served.JSON, **headers})[0] == status
    if "Content-Type" not in headers:
        assert served.ask(port, "/v1/models", None, headers)[0] == status
        assert served.ask(port, "/metrics", None, headers)[0] == status


def test_a_host_can_be_allowed(server):
    port, _ = server
    asked = {**served.JSON, "Host": "models.example:80", "Origin": "https://models.example"}
    assert served.ask(port, CHAT, OK, asked)[0] == 200
    assert served.ask(port, CHAT, OK, {**asked, "Host": "other.example"})[0] == 403


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", CHAT])
def test_an_upload_that_is_given_up_is_no_failure_of_the_server(server, path):
    port, lines = server
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), 60) as leaving:
        leaving.sendall(head.encode() + b'{"lora_name": "')
    for _ in range(20):
        assert served.ask(port)[0] == 200
    assert not [line for line in lines if "Traceback" in line]
