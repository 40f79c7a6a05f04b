"""What new weights cost an engine that is sampling: the longest gap between two decode steps that a hand-over causes.

    python benchmarks/handover.py [--sizes 4M 500M] [--rows 16] [--updates 5] [--dtype float32] [--json]

A model of random weights is sampled by `--rows` requests without end while weights arrive as they do from a learner: a
file in shared memory, published anew for each update. Per size:

    publish    the learner's side: the file is written
    load       from `load_weights` until the new version samples; decoding goes on meanwhile
    pause      the longest gap between two decode steps during a load, less the median gap while nothing is loaded
    copy       one copy of the weights in memory (the same tensors, cloned), for scale

The asked figures are a pause of at most 5 ms at 4 M parameters, and of at most 1.5 copies at 500 M. While both old and
new weights are held the engine takes twice their memory; `peak` is that of the whole process.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import resource
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from whet.inference.embedded import EmbeddedEngine
from whet.inference.protocol import SampleRequest, SamplingParams, WeightUpdate
from whet.rl.handover import weights_directory

SHAPES: dict[str, dict[str, int]] = {
    "4M": {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 5, "vocab_size": 2048},
    "500M": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 30, "vocab_size": 120_000},
}
SETTLE_STEPS = 10


@dataclass(frozen=True)
class Figures:
    parameters: int
    gap_ms: float  # median between decode steps, nothing being loaded
    pause_ms: float  # the worst of all updates
    median_pause_ms: float
    load_ms: float  # medians of the updates
    publish_ms: float
    copy_ms: float
    peak_gib: float


def checkpoint(directory: Path, size: str) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        **SHAPES[size],
        num_attention_heads=SHAPES[size]["hidden_size"] // 64,
        num_key_value_heads=SHAPES[size]["hidden_size"] // 128,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)


async def measure(directory: Path, scratch: Path, options: argparse.Namespace) -> Figures:
    dtype = getattr(torch, options.dtype)
    engine = EmbeddedEngine.from_directory(directory, dtype=dtype, seed=0)
    began: list[float] = []
    step = engine._step

    def timed() -> bool:
        began.append(time.perf_counter())
        return step()

    engine._step = timed  # type: ignore[method-assign]
    asked = [asyncio.create_task(endless(engine, row)) for row in range(options.rows)]
    published = {name: tensor.to(dtype) for name, tensor in load_file(directory / "model.safetensors").items()}
    copy_ms = min(milliseconds(lambda: [tensor.clone() for tensor in published.values()]) for _ in range(3))
    await steps(began, SETTLE_STEPS)
    pauses, loads, publications, quiet = [], [], [], []
    for version in range(1, options.updates + 1):
        first = len(began)
        await steps(began, SETTLE_STEPS)
        quiet += gaps(began[first:])
        path = scratch / f"weights-{version:08d}.safetensors"
        publications.append(milliseconds(lambda path=path: save_file(published, path)))
        await steps(began, 2)
        first, started = len(began) - 1, time.perf_counter()
        await engine.load_weights(WeightUpdate(version, path))
        loads.append((time.perf_counter() - started) * 1e3)
        await steps(began, 2)
        pauses.append(max(gaps(began[first:])))
        path.unlink()
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await engine.close()
    usual = statistics.median(quiet)
    return Figures(
        parameters=sum(tensor.numel() for tensor in published.values()),
        gap_ms=usual,
        pause_ms=max(0.0, max(pauses) - usual),
        median_pause_ms=max(0.0, statistics.median(pauses) - usual),
        load_ms=statistics.median(loads),
        publish_ms=statistics.median(publications),
        copy_ms=copy_ms,
        peak_gib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    )


async def endless(engine: EmbeddedEngine, row: int) -> None:
    """One row that never ends: with each answer the next begins."""
    while True:
        params = SamplingParams(max_tokens=2000, seed=row)
        await engine.sample(SampleRequest([1 + row, 2, 3, 4], params))


async def steps(began: list[float], count: int) -> None:
    target = len(began) + count
    while len(began) < target:
        await asyncio.sleep(0)


def gaps(times: list[float]) -> list[float]:
    return [(later - earlier) * 1e3 for earlier, later in itertools.pairwise(times)]


def milliseconds(work: Any) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found: dict[str, Figures] = {}
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as model, weights_directory() as scratch:
            checkpoint(Path(model), size)
            found[size] = asyncio.run(measure(Path(model), scratch, options))
    if not options.json:
        print(f"{'size':>6}{'gap':>10}{'pause':>10}{'median':>10}{'load':>10}{'publish':>10}{'copy':>10}{'peak':>12}")
        for size, row in found.items():
            times = (row.gap_ms, row.pause_ms, row.median_pause_ms, row.load_ms, row.publish_ms, row.copy_ms)
            print(f"{size:>6}" + "".join(f"{value:>7.1f} ms" for value in times) + f"{row.peak_gib:>8.1f} GiB")
    settings = {name: getattr(options, name) for name in ("rows", "updates", "dtype", "threads")}
    print(
        json.dumps({"benchmark": "handover", **settings, "sizes": {size: asdict(row) for size, row in found.items()}})
    )


if __name__ == "__main__":
    main()
