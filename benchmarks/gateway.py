"""Requests a second through the gateway, the latency it adds, and what it adds to each token of a stream.

    python benchmarks/gateway.py [--seconds 5] [--concurrency 256] [--streams 64] [--json]

One server process, as `whet serve` runs it: HTTP, validation, rendering with whet/tiny's template, an answer of 8
tokens read back, JSON. The engine answers at once. The load comes from this process over keep-alive connections. The
added latency is that of one request at a time, less what the same turn takes in the server's process without HTTP.

Streams: the engine emits 64 tokens, one a turn of the event loop as the embedded engine does, and gives the time of
each as its logprob, which comes with the last chunk: so the client knows how long each token took to arrive.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from typing import Any

TOKENS = 64


def request(**more: Any) -> bytes:
    messages = [
        {"role": "system", "content": "You reverse texts."},
        {"role": "user", "content": "Reverse the text: benchmark"},
    ]
    body = json.dumps({"model": "whet/tiny", "messages": messages, **more}).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )


REQUEST = request(max_tokens=8)
STREAMED = request(max_tokens=TOKENS, stream=True, logprobs=True)

SERVER = """
import asyncio, gc, json, time
from whet.gateway.app import Gateway
from whet.gateway.connections import limited_connections
from whet.gateway.serve import answer, event_loop_factory, listen
from whet.inference.loading import load_policy
from whet.inference.protocol import Sample, VersionRun
from whet.types import UserMessage

class Engine:
    version = 0
    async def sample(self, request, on_tokens=None):
        ids = [72, 101, 108, 108, 111, 33, 33, 33]
        logprobs = [-1.0] * len(ids)
        if on_tokens is not None:
            ids, logprobs = self.letters, []
            for token in ids:
                logprobs.append(time.perf_counter())
                on_tokens([token])
                await asyncio.sleep(0)
        return Sample(ids=ids, logprobs=logprobs, versions=[VersionRun(0, len(ids))], finish_reason="length")
    async def release(self, key): ...
    async def close(self): ...

async def main():
    policy = load_policy("whet/tiny", threads=1)
    policy.client.engine = Engine()
    policy.client.engine.letters = policy.tokenizer.encode("x" * 64, add_special_tokens=False)
    messages = [UserMessage("Reverse the text: benchmark")]
    times = []
    for number in range(2000):
        start = time.perf_counter()
        await policy.client.get_response(messages, "whet/tiny", {"max_tokens": 8})
        times.append(time.perf_counter() - start)
    listening = listen("127.0.0.1", 0)
    print(json.dumps({"port": listening.getsockname()[1], "inside_s": sorted(times)[1000]}), flush=True)
    gc.collect()
    gc.freeze()
    gateway = Gateway({"whet/tiny": policy.client})
    await answer(gateway.app, listening, limited_connections(), lambda: None, 5)

with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
    runner.run(main())
"""


async def one_connection(port: int, until: float, times: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until:
        start = time.perf_counter()
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
        times.append(time.perf_counter() - start)
    writer.close()


async def one_stream(port: int, until: float, firsts: list[float], tokens: list[float]) -> None:
    """Seconds from the engine to here, of first tokens and of all."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until:
        writer.write(STREAMED)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        seen: list[float] = []
        async for line in reader:
            now = time.perf_counter()
            if line.startswith(b"data: {"):
                choice = json.loads(line[6:])["choices"][0]
                seen += [now] * len(choice["delta"].get("content", ""))
                if choice["finish_reason"]:
                    sent = [entry["logprob"] for entry in choice["logprobs"]["content"]]
            if line == b"0\r\n":
                await reader.readline()
                break
        took = [there - here for there, here in zip(seen, sent, strict=True)]
        firsts.append(took[0])
        tokens += took
    writer.close()


async def streams(port: int, count: int, seconds: float) -> dict[str, Any]:
    firsts: list[float] = []
    tokens: list[float] = []
    start = time.perf_counter()
    await asyncio.gather(*(one_stream(port, start + seconds, firsts, tokens) for _ in range(count)))
    wall = time.perf_counter() - start
    firsts.sort()
    return {
        "streams": count,
        "tokens_per_s": len(tokens) / wall,
        "first_ms": statistics.median(firsts) * 1000,
        "first_p99_ms": firsts[int(len(firsts) * 0.99)] * 1000,
        "token_ms": statistics.median(tokens) * 1000,
    }


async def load(port: int, connections: int, seconds: float) -> dict[str, Any]:
    times: list[float] = []
    start = time.perf_counter()
    await asyncio.gather(*(one_connection(port, start + seconds, times) for _ in range(connections)))
    wall = time.perf_counter() - start
    times.sort()
    return {
        "requests_per_s": len(times) / wall,
        "median_ms": statistics.median(times) * 1000,
        "p99_ms": times[int(len(times) * 0.99)] * 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of load, after one of warm-up")
    parser.add_argument("--concurrency", type=int, default=256, help="requests at once")
    parser.add_argument("--streams", type=int, default=64, help="streamed answers at once")
    parser.add_argument("--json", action="store_true", help="the JSON line only, without the table")
    options = parser.parse_args()
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        asyncio.run(load(ready["port"], options.concurrency, 1.0))
        many = asyncio.run(load(ready["port"], options.concurrency, options.seconds))
        alone = asyncio.run(load(ready["port"], 1, options.seconds))
        streamed = [asyncio.run(streams(ready["port"], count, options.seconds)) for count in (1, options.streams)]
    finally:
        server.terminate()
        server.wait()
    added = alone["median_ms"] - ready["inside_s"] * 1000
    if not options.json:
        print(f"{options.concurrency} at once  {many['requests_per_s']:6.0f} requests/s  p99 {many['p99_ms']:6.1f} ms")
        print(f"one at a time  {alone['median_ms']:6.2f} ms, of which the gateway adds {added:.2f} ms")
        for figures in streamed:
            print(f"{figures['streams']} stream(s)  {figures['tokens_per_s']:6.0f} tokens/s; from engine to client:")
            first = f"first token {figures['first_ms']:.2f} ms (p99 {figures['first_p99_ms']:.1f})"
            print(f"               {first}, any token {figures['token_ms']:.2f} ms")
    result = {"concurrency": options.concurrency, "many": many, "alone": alone, "added_ms": added}
    result["streamed"] = streamed
    print(json.dumps({"benchmark": "gateway", **result}))


if __name__ == "__main__":
    main()
