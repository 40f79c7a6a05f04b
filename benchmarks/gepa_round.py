"""Wall time of a validation round, next to what it cannot be less than: ceil(N / c) times the endpoint's latency.

A scripted endpoint in a process of its own takes 200 ms for every answer, over real HTTP. One run makes several rounds
of N = 50 calls, each of another prompt, as a search does: in a thread, written down as begun before and as finished
after. The first round also opens the connections; it is told apart.

    .venv/bin/python benchmarks/gepa_round.py
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

from whet.clients.config import ClientConfig
from whet.clients.make import make_client
from whet.envs.loading import load_environment
from whet.gepa.budget import Budget, CostCap
from whet.gepa.call_log import CallLog
from whet.gepa.calls import Calls
from whet.gepa.execute import Rolled
from whet.gepa.observers import Several
from whet.gepa.outage import Outage
from whet.gepa.types import Example
from whet.rollouts.pace import paced

TESTS = Path(__file__).parents[1] / "tests" / "gepa"
ROUNDS = 6


def seconds_of_rounds(url: str, examples: int, concurrency: int) -> list[float]:
    """Of each round of one search."""
    env = load_environment(str(TESTS / "planted"))
    val = [Example("planted", "val", n, n, row) for n, row in enumerate(env.get_dataset(examples))]

    async def measure(directory: Path) -> list[float]:
        client = make_client(ClientConfig(api_base_url=url))
        log = CallLog(directory)
        try:
            with paced():
                calls = Calls(
                    execute=Rolled({"planted": env}, client, "policy", {"planted": {}}, seed=None),
                    budget=Budget(ROUNDS * examples),
                    cap=CostCap(None),
                    log=log,
                    observer=Several(),
                    max_concurrent=concurrency,
                    outage=Outage(2, 1.0),
                )
                return await asyncio.to_thread(rounds, calls, val)
        finally:
            log.close()
            await client.close()

    def rounds(calls: Calls, val: list[Example]) -> list[float]:
        found = []
        for number in range(ROUNDS):
            start = time.perf_counter()
            calls.score({"system_prompt": f"prompt {number}"}, val, "race")
            found.append(time.perf_counter() - start)
        return found

    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(measure(Path(directory)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latency-ms", type=float, default=200.0)
    parser.add_argument("--examples", type=int, default=50)
    given = parser.parse_args()
    os.environ.setdefault("OPENAI_API_KEY", "none")
    command = [sys.executable, "-m", "planted", "policy", "--latency-ms", str(given.latency_ms)]
    endpoint = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(TESTS)}
    )
    assert endpoint.stdout is not None
    result: dict[str, Any] = {"examples": given.examples, "latency_ms": given.latency_ms, "rounds": []}
    print(f"{'c':>4}  {'least':>8}  {'first':>8}  {'median':>8}  {'slowest':>8}  {'ratio':>6}")
    try:
        url = endpoint.stdout.readline().strip()
        for concurrency in (10, 32):
            least = math.ceil(given.examples / concurrency) * given.latency_ms / 1000
            first, *others = seconds_of_rounds(url, given.examples, concurrency)
            median = statistics.median(others)
            row = {"concurrency": concurrency, "least_s": least, "first_s": first, "median_s": median}
            result["rounds"].append({**row, "slowest_s": max(others), "ratio": median / least})
            print(
                f"{concurrency:>4}  {least:>7.3f}s  {first:>7.3f}s  {median:>7.3f}s  {max(others):>7.3f}s  "
                f"{median / least:>6.3f}"
            )
    finally:
        endpoint.kill()
        endpoint.wait()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
