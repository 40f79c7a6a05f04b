"""Runs for `dashboard.py`: one of very many rollouts; and, as a process, one that writes two steps a second.

python benchmarks/_dashboard_run.py DIRECTORY SECONDS [STEP]    prints the mean seconds of a step's work, as JSON
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from pathlib import Path

from whet.records.lock import DirectoryLock
from whet.rl.monitors.jsonl import JsonlMonitor
from whet.rl.monitors.protocol import RunPlan, StepReport
from whet.rl.storage.run_directory import Status

A_STEP = 1_000
WORK = 300
"""Hashes of 16 KiB that a step computes: some 4 ms on one core."""
EVERY = 0.5
WRITTEN = "bench/written"
"""Metric that holds when its row was written."""
CONFIG = 'model = "whet/tiny"\nmax_steps = 1000000\n[[env]]\nid = "reverse-text"\n[[env]]\nid = "calculator"\n'


def make_run(directory: Path, rollouts: int, seed: int = 0) -> Path:
    """A run that has ended, with about 900 bytes for each rollout, a thousand of them a step."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnop", k=6)) for _ in range(500)]
    (directory / "rollouts").mkdir(parents=True)
    (directory / "config.toml").write_text(CONFIG)
    (directory / "status.json").write_text(json.dumps({"state": "finished", "step": rollouts // A_STEP}))
    for step in range(1, rollouts // A_STEP + 1):
        with (directory / "rollouts" / f"step_{step:06}.jsonl").open("w") as file:
            file.writelines(json.dumps(_row(draw, words, step, number)) + "\n" for number in range(A_STEP))
    return directory


def _row(draw: random.Random, words: list[str], step: int, number: int) -> dict[str, object]:
    reward = round(draw.random(), 3)
    return {
        "group": str(step * (A_STEP // 8) + number // 8),
        "environment": draw.choice(["reverse-text", "calculator"]),
        "example_id": draw.randrange(10_000),
        "prompt": [{"role": "user", "content": "Reverse: " + " ".join(draw.choices(words, k=20))}],
        "completion": [{"role": "assistant", "content": " ".join(draw.choices(words, k=60))}],
        "reward": reward,
        "advantage": round(reward - 0.5, 3),
        "metrics": {"exact_match": reward},
        "timing": {"total": 1.5},
        "is_truncated": reward < 0.05,
        "stop_condition": "done",
        "error": None,
        "token_usage": {"input_tokens": 40.0, "output_tokens": float(draw.randrange(20, 200))},
    }


def make_steps(directory: Path, count: int, seed: int = 0) -> None:
    """The metrics of a run's first `count` steps: 62 of each."""
    draw = random.Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "metrics.jsonl").open("w") as file:
        for step in range(1, count + 1):
            metrics = {f"group{number // 10}/metric{number}": draw.random() for number in range(60)}
            rewards = {"reward/mean": draw.random(), "reward/reverse-text/mean": draw.random()}
            file.write(json.dumps({"step": step, **rewards, **metrics}) + "\n")


def write_steps(directory: Path, seconds: float, step: int = 0) -> float:
    """Steps of a fixed amount of work after `step`, written by the monitors of training. Its mean seconds."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.toml").write_text(CONFIG)
    lock = DirectoryLock(directory)
    status, jsonl = Status(directory / "status.json"), JsonlMonitor(directory / "metrics.jsonl")
    status.start(RunPlan(directory.name, directory, "whet/tiny", ["reverse-text"], 8, 4, 1_000_000))
    block = bytes(16_384)
    spent, first, begun = 0.0, step, time.monotonic()
    due = begun + EVERY * random.random()
    while due < begun + seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        step, due = step + 1, due + EVERY
        began = time.monotonic()
        for _ in range(WORK):
            hashlib.sha256(block).digest()
        spent += time.monotonic() - began
        metrics = {f"group{number // 10}/metric{number}": number / step for number in range(60)}
        report = StepReport(step, {"reward/mean": 0.5, **metrics, WRITTEN: time.time()})
        jsonl.step(report)
        status.step(report)
    lock.release()
    return spent / max(1, step - first)


if __name__ == "__main__":
    print(json.dumps(write_steps(Path(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:]))))
