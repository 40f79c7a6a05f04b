"""One rollout of 200 turns and 100 k tokens: what the run's process holds of it, and what the gateway adds to a call.

    python benchmarks/long_rollouts.py [--turns 200] [--tokens 100000] [--json]

A program takes the turns, each with the whole conversation, as an agent does: every second one over HTTP at the
rollout's address, the others without HTTP (`session.ask`), so that both are measured at the same lengths in one run.
Times are of the processor (client, gateway and rollout loop are one process), medians of the last eighth of the calls.
The engine answers at once; rendering, continuation by token, validation and recording are the real ones, with the
tokenizer of whet/tiny and a context as long as it needs. Memory is the resident set of the process, read
before the rollout and at its end, where its state is still held as a training run holds it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
from pathlib import Path
from typing import Any, cast

import whet
from whet.inference.loading import load_policy
from whet.inference.protocol import Sample, VersionRun

ANSWER = "This is the answer of a turn."


class Engine:
    """Answers at once."""

    version = 0

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    async def sample(self, request: Any, on_tokens: Any = None) -> Sample:
        ids = list(self.ids)
        return Sample(ids=ids, logprobs=[-1.0] * len(ids), versions=[VersionRun(0, len(ids))], finish_reason="stop")

    async def release(self, key: str) -> None: ...

    async def close(self) -> None: ...


async def over_http(reader: Any, writer: Any, path: str, key: str, body: bytes) -> str:
    head = f"POST {path}/v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    assert lines[0].endswith(b"200 OK"), lines[0]
    length = next(int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length"))
    answer: str = json.loads(await reader.readexactly(length))["choices"][0]["message"]["content"]
    return answer


def resident() -> float:
    """MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


async def measure(turns: int, tokens: int) -> dict[str, Any]:
    policy = load_policy("whet/tiny", threads=1)
    client = policy.client
    ids = policy.tokenizer.encode(ANSWER, add_special_tokens=False)
    client.engine, client.max_context = cast(Any, Engine(ids)), 2 * tokens
    size = len(policy.tokenizer.encode("word and " * 100, add_special_tokens=False)) / 900
    given = "word and " * (1 + int((tokens / turns - len(ids)) / size) // 9)
    seconds: dict[str, list[float]] = {"http": [], "direct": []}

    async def program(task: Any, state: Any, session: Any) -> None:
        opening = session.opening()
        reader, writer = await asyncio.open_connection("127.0.0.1", opening.port)
        messages: list[dict[str, Any]] = []
        for turn in range(turns):
            messages = [*messages, {"role": "user", "content": f"{turn} {given}"}]
            body = json.dumps({"model": "policy", "messages": messages}).encode() if turn % 2 else b""
            start = time.process_time()
            if turn % 2:
                answer = await over_http(reader, writer, opening.path, opening.key, body)
                seconds["http"].append(time.process_time() - start)
            else:
                answer = (await session.ask(messages)).content
                seconds["direct"].append(time.process_time() - start)
            messages = [*messages, {"role": "assistant", "content": answer}]
        writer.close()

    env = whet.Env(
        whet.Taskset(source=[{"prompt": [{"role": "user", "content": "go"}], "answer": ""}]),
        whet.Harness(program=program),
    )
    row = cast(Any, env.get_dataset()[0])
    before = resident()
    state = await env.rollout(row, client, "policy", {"max_tokens": 64})
    assert state["error"] is None, state["error"]
    after = resident()
    last = state["trajectory"][-1]["tokens"]
    added = [
        http - direct
        for http, direct in zip(seconds["http"][-turns // 8 :], seconds["direct"][-turns // 8 :], strict=True)
    ]
    result = {
        "turns": len(state["trajectory"]),
        "tokens": len(last["prompt_ids"]) + len(last["completion_ids"]),
        "growth_mb": after - before,
        "http_ms": 1e3 * statistics.median(seconds["http"][-turns // 8 :]),
        "direct_ms": 1e3 * statistics.median(seconds["direct"][-turns // 8 :]),
        "added_ms": 1e3 * statistics.median(added),
    }
    await env.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = asyncio.run(measure(args.turns, args.tokens))
    print(json.dumps(result) if args.json else "\n".join(f"{name:<10} {value:,.1f}" for name, value in result.items()))


if __name__ == "__main__":
    main()
