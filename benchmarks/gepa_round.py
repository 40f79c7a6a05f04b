"""Wall time of a validation round, next to what it cannot be less than: ceil(N / c) times the endpoint's latency.

A scripted endpoint in a process of its own takes 200 ms for every answer, over real HTTP. One run makes several rounds
of N = 50 calls, each of another prompt, as a search does: in a thread, written down as begun before and as finished
after. The first round also opens the connections; it is reported separately. Alternating with them, the client alone
sends the same requests, c at once: the share of the machine and the client in the time, and the
processor time of a request, which is more reliable on a shared machine.

    .venv/bin/python benchmarks/gepa_round.py
    .venv/bin/python benchmarks/gepa_round.py --examples 1024 --concurrency 512
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from whet.clients.client import Client
from whet.clients.config import ClientConfig
from whet.clients.make import make_client
from whet.envs.loading import load_environment
from whet.gepa.calls.budget import CallBudget, CostCap
from whet.gepa.calls.call_log import CallLog
from whet.gepa.calls.calls import Calls, RolloutExecutor
from whet.gepa.calls.outage import Outage
from whet.gepa.run import Several
from whet.gepa.types import SearchExample
from whet.rollouts.pace import paced
from whet.types import SystemMessage

TESTS = Path(__file__).parents[1] / "tests" / "gepa"
ROUNDS = 8


def seconds_of_rounds(url: str, examples: int, concurrency: int) -> tuple[list[float], list[float], list[float]]:
    """Of each round of one search, of the requests of each by the client alone, and processor time of these."""
    env = load_environment(str(TESTS / "planted"))
    val = [SearchExample("planted", "val", n, n, row) for n, row in enumerate(env.get_dataset(examples))]

    async def alone(client: Client[Any, Any, Any, Any], prompt: str) -> float:
        places = asyncio.Semaphore(concurrency)

        async def ask(example: SearchExample) -> None:
            messages = [SystemMessage(prompt), *example.row["prompt"][1:]]
            async with places:
                await client.get_response(messages, "policy", {})

        start = time.perf_counter()
        await asyncio.gather(*(ask(example) for example in val))
        return time.perf_counter() - start

    async def measure(directory: Path) -> tuple[list[float], list[float], list[float]]:
        client = make_client(ClientConfig(api_base_url=url))
        log = CallLog(directory)
        try:
            with paced():
                calls = Calls(
                    execute=RolloutExecutor({"planted": env}, client, "policy", {"planted": {}}, seed=None),
                    budget=CallBudget(ROUNDS * examples),
                    cap=CostCap(None),
                    log=log,
                    observer=Several(),
                    max_concurrent=concurrency,
                    outage=Outage(2, 1.0),
                )
                found: tuple[list[float], list[float], list[float]] = [], [], []
                for number in range(ROUNDS):
                    found[0].append(await asyncio.to_thread(one_round, calls, f"prompt {number}"))
                    before = time.process_time()
                    found[1].append(await alone(client, f"other prompt {number}"))
                    found[2].append(time.process_time() - before)
                return found
        finally:
            log.close()
            await client.close()

    def one_round(calls: Calls, prompt: str) -> float:
        start = time.perf_counter()
        calls.score({"system_prompt": prompt}, val, "race")
        return time.perf_counter() - start

    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(measure(Path(directory)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latency-ms", type=float, default=200.0)
    parser.add_argument("--examples", type=int, default=50)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[10, 32])
    given = parser.parse_args()
    os.environ.setdefault("OPENAI_API_KEY", "none")
    command = [sys.executable, "-m", "planted", "policy", "--latency-ms", str(given.latency_ms)]
    endpoint = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(TESTS)}
    )
    assert endpoint.stdout is not None
    result: dict[str, Any] = {"examples": given.examples, "latency_ms": given.latency_ms, "rounds": []}
    print(
        f"{'c':>4}  {'least':>7}  {'first':>7}  {'median':>7}  {'slowest':>7}  {'ratio':>6}  {'client alone':>12}  "
        f"{'its cpu':>10}"
    )
    try:
        url = endpoint.stdout.readline().strip()
        for concurrency in given.concurrency:
            least = math.ceil(given.examples / concurrency) * given.latency_ms / 1000
            (first, *others), (_, *bare), (_, *busy) = seconds_of_rounds(url, given.examples, concurrency)
            median, alone = statistics.median(others), statistics.median(bare)
            row = {"concurrency": concurrency, "least_s": least, "first_s": first, "median_s": median}
            row |= {"slowest_s": max(others), "ratio": median / least, "client_alone": alone / least}
            row["client_cpu_ms"] = cpu_ms = statistics.median(busy) / given.examples * 1000
            result["rounds"].append(row)
            print(
                f"{concurrency:>4}  {least:>6.3f}s  {first:>6.3f}s  {median:>6.3f}s  {max(others):>6.3f}s  "
                f"{median / least:>6.3f}  {alone / least:>12.3f}  {cpu_ms:>7.2f} ms"
            )
    finally:
        endpoint.kill()
        endpoint.wait()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
