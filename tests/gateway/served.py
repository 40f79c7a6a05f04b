"""`whet serve` in a process of its own, and requests to it that no client library would send."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

START = """
import resource, sys
most = int(sys.argv.pop(1))
if most:
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 256), most))
from whet.cli.main import main
main()
"""
JSON = {"Content-Type": "application/json"}
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Reverse the text: abc"}], "max_tokens": 3},
    "/v1/completions": {"prompt": "abc", "max_tokens": 3},
    "/v1/responses": {"input": "abc", "max_output_tokens": 3},
    "/v1/messages": {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 3},
}
NUMBERS: list[Any] = [
    0, 1, 2, 3, -1, -2, 0.5, 1e-39, 5e-324, 1e-5, 1e-6, 1e300, -1e300, 1e39, 2**31, 2**31 - 1, 2**53, 2**63, 2**63 - 1,
    -(2**63), -(2**63) - 1, 2**64, 2**64 - 1, 10**30, 10**400, -(10**400), 100, 100.1, 1.0000001, -0.0, 127, 128, 129,
    True, False, None,
]  # fmt: skip
OTHERS: list[Any] = [
    "", "1", "x" * 3000, "\ud800", "\0", "1e999", [], {}, [[]], [1, 2], ["a", "b"], ["a"] * 300, ["x" * 2000], [""],
    [[[[[[]]]]]], {"1": 1e39}, {"50256": -100, "a": 2**70}, [2**63], [None], [0.1, "a"], {"type": "text"},
]  # fmt: skip
CONTENTS: list[Any] = [
    "a", "", "\ud800", None, [], [{"type": "text", "text": "a"}], [{"type": "text"}], 3, ["a"], "<|im_end|>",
    [{"type": "image_url", "image_url": {"url": "x"}}], [{"type": "tool_use", "id": "1", "name": "f", "input": [1]}],
    [{"type": "tool_result", "tool_use_id": "1", "content": [{}]}], "a" * 5000, "a " * 100_000]  # fmt: skip
CALLS: list[Any] = [
    None, [], [{"id": "1", "function": {"name": "f", "arguments": "{"}}], [{"name": "f", "arguments": {"a": 1}}],
    [{"id": 1, "function": {"name": "\ud800", "arguments": "\ud800"}}], [1], "x"]  # fmt: skip
NESTED: Any = {"a": 1e39}
for _ in range(200):
    NESTED = {"properties": NESTED}
SCHEMAS: list[Any] = [
    {},
    {"properties": 3},
    {"properties": {"a": None}},
    {"type": ["a", 1]},
    {"\ud800": "\ud800"},
    NESTED,
    None,
]
FIELDS = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "seed",
    "n",
    "best_of",
    "stop",
    "stop_sequences",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
    "stream",
    "stream_options",
    "return_token_ids",
    "tools",
    "tool_choice",
    "stop_token_ids",
    "model",
    "prompt",
    "messages",
    "input",
    "system",
    "instructions",
    "echo",
    "suffix",
    "response_format",
    "text",
    "user",
    "lora_name",
    "lora_path",
]
PATHS = [*VALID, *VALID, *VALID, "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/models", "/health"]


@contextlib.contextmanager
def served(*options: str, files: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Port and printed lines of a server that may have `files` files open (0: as many as this process)."""
    command = [sys.executable, "-c", START, str(files), "serve", "--port", "0", "--threads", "1", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", env=environment
    )
    lines: list[str] = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                break
        port = int(lines[-1].partition("://127.0.0.1:")[2].partition("/")[0])
        reading = threading.Thread(target=lambda: lines.extend(process.stdout), daemon=True)
        reading.start()
        yield port, lines
        assert process.poll() is None, lines
    finally:
        process.terminate()
        process.wait(120)


def ask(
    port: int, path: str = "/health", body: bytes | None = None, headers: Mapping[str, str] = JSON
) -> tuple[int, bytes]:
    """Status and body of one answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET" if body is None else "POST", path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()


def odd_requests(seed: int, count: int, model: str = "whet/tiny") -> list[tuple[str, bytes]]:
    """Paths and bodies, each of a request that is right but for one to four fields."""
    draw = random.Random(seed)
    return [_odd_request(draw, model) for _ in range(count)]


def _odd_request(draw: random.Random, model: str) -> tuple[str, bytes]:
    path = draw.choice(PATHS)
    body: dict[str, Any] = {"model": model, **VALID.get(path, {"lora_name": "a", "lora_path": "b"})}
    for name in draw.sample(FIELDS, draw.randint(1, 4)):
        body[name] = draw.choice(NUMBERS if draw.random() < 0.75 else OTHERS)
    if draw.random() < 0.3:
        body["messages" if "messages" in body else "input"] = [_odd_message(draw) for _ in range(draw.randint(0, 4))]
    if draw.random() < 0.1:
        schema = draw.choice(SCHEMAS)
        tool = {"name": draw.choice(["f", "\ud800", "a" * 5000]), "parameters": schema, "input_schema": schema}
        body["tools"] = [tool if path == "/v1/messages" else {"type": "function", **tool, "function": tool}]
    text = json.dumps(body)
    if draw.random() < 0.1:  # numbers that only JSON itself can say
        text = text.replace("0.5", draw.choice(["1e999", "-1e999", "NaN", "9" * 5000, "1e-999", "0." + "3" * 400]))
    return path, text.encode()


def _odd_message(draw: random.Random) -> dict[str, Any]:
    role = draw.choice(["user", "user", "assistant", "system", "tool", "developer", "robot"])
    message = {"role": role, "content": draw.choice(CONTENTS)}
    if draw.random() < 0.3:
        message |= {"tool_calls": draw.choice(CALLS), "tool_call_id": draw.choice(["1", "2", 3, None])}
    if draw.random() < 0.1:
        message["reasoning_content"] = draw.choice(CONTENTS)
    return message


def answers_to(port: int, requests: Sequence[tuple[str, bytes]], *, at_once: int = 16) -> list[tuple[int, bytes]]:
    """What each request is answered, `at_once` of them at the same time over connections that stay open."""
    answers: list[tuple[int, bytes]] = [(0, b"")] * len(requests)
    failures: list[BaseException] = []

    def work(first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        try:
            for index in range(first, len(requests), at_once):
                path, body = requests[index]
                get = path in ("/v1/models", "/health")
                connection.request("GET" if get else "POST", path, None if get else body, JSON)
                answer = connection.getresponse()
                answers[index] = answer.status, answer.read()
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(first,)) for first in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    return answers
