"""How long a bubblewrap sandbox takes to start, to run a command and to end; and many of them at once.

    python benchmarks/sandboxes.py [--repetitions 50] [--at-once 200] [--json]

A start is what a rollout waits for: from asking the backend to a sandbox that takes commands. It is measured one after
the other, with nothing else running, compared with a bare `bwrap` with a read-only root that runs `true` (a floor:
no limits, no filter, no private files) and of starting the Python that is the sandbox's first process. Then so many
are requested at the same moment; each runs a command and is closed; all have to succeed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import time
from typing import Any

from whet.errors import SandboxError
from whet.sandboxes.bubblewrap.backend import BubblewrapBackend
from whet.sandboxes.bubblewrap.host import host
from whet.sandboxes.protocol import SandboxSpec

SPEC = SandboxSpec(memory_bytes=256 << 20, disk_bytes=64 << 20, timeout_s=120)


def milliseconds(since: float) -> float:
    return (time.perf_counter() - since) * 1000


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    ninetieth = ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))]
    return {"median_ms": round(statistics.median(values), 1), "p90_ms": round(ninetieth, 1)}


def bare(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return milliseconds(began)


async def one_after_the_other(backend: BubblewrapBackend, repetitions: int) -> dict[str, Any]:
    bwrap = [host().program, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    python = [host().layout.python, "-I", "-S", "-c", "import ctypes, resource"]
    times: dict[str, list[float]] = {"start": [], "command": [], "end": [], "bare bwrap": [], "bare python": []}
    for repetition in range(repetitions + 1):
        began = time.perf_counter()
        sandbox = await backend.create(SPEC)
        start = milliseconds(began)
        began = time.perf_counter()
        await sandbox.exec(["true"])
        command = milliseconds(began)
        began = time.perf_counter()
        await sandbox.close()
        measured = (start, command, milliseconds(began), bare(bwrap), bare(python))
        if repetition:  # the first is warm-up
            for values, value in zip(times.values(), measured, strict=True):
                values.append(value)
    return {name: spread(values) for name, values in times.items()}


async def at_once(backend: BubblewrapBackend, count: int) -> dict[str, Any]:
    starts: list[float] = []
    failures: list[str] = []
    largest_pause = 0.0

    async def use() -> None:
        began = time.perf_counter()
        try:
            async with await backend.create(SPEC) as sandbox:
                starts.append(milliseconds(began))
                everybody.set() if len(starts) == count else None
                await everybody.wait()
                result = await sandbox.exec("echo here")
                if result.stdout != "here\n":
                    failures.append(f"{result.describe()}: {result.stderr}")
        except SandboxError as error:
            failures.append(str(error))
            everybody.set()

    async def watch() -> None:
        nonlocal largest_pause
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            largest_pause = max(largest_pause, milliseconds(began) - 1)

    everybody = asyncio.Event()  # all are open at the same time before the first runs its command
    watching = asyncio.ensure_future(watch())
    began = time.perf_counter()
    await asyncio.gather(*(use() for _ in range(count)))
    wall = milliseconds(began)
    watching.cancel()
    return {
        "asked_for": count,
        "succeeded": count - len(failures),
        "all_open_after_ms": round(max(starts)),
        "wall_ms": round(wall),
        "largest_event_loop_pause_ms": round(largest_pause, 1),
        "first_failure": failures[0] if failures else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--repetitions", type=int, default=50, help="sandboxes measured one by one, after one of warm-up"
    )
    parser.add_argument("--at-once", type=int, default=200, help="sandboxes requested at the same moment")
    parser.add_argument("--json", action="store_true", help="the JSON line only, without the table")
    options = parser.parse_args()

    async def measure() -> tuple[dict[str, Any], dict[str, Any]]:
        backend = BubblewrapBackend()
        await backend.check()
        return await one_after_the_other(backend, options.repetitions), await at_once(backend, options.at_once)

    single, many = asyncio.run(measure())
    if not options.json:
        print(f"one after the other, {options.repetitions} times, {os.cpu_count()} cores")
        for name, values in single.items():
            print(f"  {name:<14} median {values['median_ms']:>7.1f} ms   p90 {values['p90_ms']:>7.1f} ms")
        print(f"{many['asked_for']} at once")
        print(f"  succeeded      {many['succeeded']:>7}")
        print(f"  all open after {many['all_open_after_ms']:>7} ms, all done after {many['wall_ms']} ms")
        print(f"  largest pause of the event loop {many['largest_event_loop_pause_ms']:.1f} ms")
        if many["first_failure"]:
            print(f"  first failure: {many['first_failure']}")
    print(json.dumps({"benchmark": "sandboxes", "one": single, "at_once": many, "cores": os.cpu_count()}))


if __name__ == "__main__":
    main()
