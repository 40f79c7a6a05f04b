"""The pause in decoding that an update of the weights causes.

    python benchmarks/weight_updates.py [--sizes 4M 500M] [--rows 16] [--updates 5] [--dtype float32] [--lora] [--json]

It uses the components of a run with a model of random weights. A learner in this process publishes weights into shared
memory, once per update. An engine in its own process loads them while it samples `--rows` endless requests and records
the start of each decoding step. A *gap* is the time from one start to the next: the step and everything that delays the
next one. Per size:

    gap        the usual gap: the median without an update (of the steps just before each update)
    pause      the longest gap, from the notification of the engine until two steps after it has reported that the new
               weights are in use, minus the usual gap: the extra time between two decoding steps for reading, checking
               and mapping weights and releasing the old ones, and for the steps that this slows down
    alone      `pause` without the time in which the decoding thread was ready and waited for a core
    first      `pause` of the first two updates, which are not counted otherwise: each of them maps a file
    lost       the sum over all gaps of an update: decoding time lost, even if no single gap was long
    noise      `pause` by the same definition without an update: as many gaps, just before each update
    over       the share of updates whose pause exceeds the target, and the share whose noise does
    work       processor time of the engine's other threads from the notification until the response
               (with `--threads 1`: mapping, releasing); the cost of an update, whatever else the machine does
    load       from the notification until the engine reports the new version; decoding continues meanwhile
    publish    the learner's side: writing the files
    beside     the longest gap while the learner publishes, minus the usual one; they share memory and cores, not code
    copy       one copy of the weights between warm memory by one thread, for scale

`pause`, `noise`, `alone` and `first` are the worst of all updates, with the median after `pause` and `noise`; the
others are medians. The targets are a pause of at most 5 ms at 4 M parameters, and of at most 1.5 copies at 500 M.
`peak` is the peak memory of the engine's process, shared memory included.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from whet.inference.embedded import EmbeddedEngine
from whet.inference.protocol import SampleRequest, SamplingParams
from whet.inference.remote_engine import RemoteEngine
from whet.models import tiny
from whet.rl.learner.config import LoraConfig, OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rl.learner.torch_learner import TorchLearner
from whet.rl.storage.weight_directory import shared_memory, weights_directory
from whet.rl.supervision import engine_process
from whet.rl.supervision.engine_process import EngineProcess

SHAPES: dict[str, dict[str, int]] = {
    "4M": {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 5, "vocab_size": 2048},
    "500M": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 30, "vocab_size": 120_000},
}
SETTLE_STEPS, AFTER_STEPS = 20, 2
MOST_TOKENS, MOST_STEPS = 2000, 1 << 20
NOTES = "steps.f8"
MAPPED_FIRST = 2
"""Updates until all files are mapped that a learner writes in turn."""
_run_engine = engine_process._run


@dataclass(frozen=True)
class Figures:
    """In milliseconds."""

    parameters: int
    gap_ms: float
    pause_ms: float  # the worst of all updates
    median_pause_ms: float
    alone_ms: float  # the worst
    first_ms: float  # the worst
    lost_ms: float
    noise_ms: float  # the worst
    median_noise_ms: float
    work_ms: float
    load_ms: float
    publish_ms: float
    beside_ms: float
    copy_ms: float
    asked_ms: float
    over: float  # shares of the updates
    noise_over: float
    peak_gib: float


@dataclass
class Updates:
    """What was seen of each update, in milliseconds, the usual gap before it already taken away."""

    usual: list[float] = field(default_factory=list)
    pause: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    publish: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)


class Steps:
    """When the decode steps of an engine began, and how long it had waited for a core by then, as its process notes it.

    Rows of seconds; [0, 0] counts them. The clock is the system's monotonic one, which all processes share.
    """

    def __init__(self, directory: Path, mode: Any) -> None:
        self._notes: NDArray[np.float64] = np.memmap(directory / NOTES, np.float64, mode, shape=(MOST_STEPS + 1, 2))
        if mode == "w+":
            self._notes[0] = 0

    def note(self, waited: float) -> None:
        count = len(self)
        self._notes[count + 1] = time.perf_counter(), waited
        self._notes[0] = count + 1

    def __len__(self) -> int:
        return int(self._notes[0, 0])

    async def more(self, count: int) -> None:
        target = len(self) + count
        while len(self) < target:
            await asyncio.sleep(0.001)

    def gaps(self, since: float, until: float, *, after: int = 0) -> NDArray[np.float64]:
        """The gaps that any part of the span falls into, and `after` more: milliseconds, and those of waiting."""
        notes = self._notes[1 : len(self) + 1]
        first = max(int(np.searchsorted(notes[:, 0], since)) - 1, 0)
        last = int(np.searchsorted(notes[:, 0], until)) + after
        return np.diff(notes[first : last + 1], axis=0) * 1e3

    def gaps_within(self, since: float, until: float) -> NDArray[np.float64]:
        """The gaps that lie wholly in the span, likewise."""
        notes = self._notes[1 : len(self) + 1]
        return np.diff(notes[(since <= notes[:, 0]) & (notes[:, 0] <= until)], axis=0) * 1e3


def run_engine(*given: Any) -> None:
    """The engine's process as a run has it, with a note at the beginning of each decode step."""
    paths = (value for value in given if isinstance(value, Path))
    directory = next(path.parent for path in paths if path.is_relative_to(shared_memory()))
    noted, step = Steps(directory, "r+"), EmbeddedEngine._step
    scheduling = os.open("/proc/self/schedstat", os.O_RDONLY)  # of the first thread, which decodes

    def timed(engine: EmbeddedEngine) -> bool:
        noted.note(int(os.pread(scheduling, 100, 0).split()[1]) / 1e9)
        return step(engine)

    EmbeddedEngine._step = timed  # type: ignore[method-assign, assignment]
    _run_engine(*given)


def work_beside(pid: int) -> float:
    """Milliseconds of processor time that all threads but the first have taken so far."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    beside = (task / "schedstat" for task in tasks if task.name != str(pid))
    return sum(int(path.read_text(encoding="utf-8").split()[0]) for path in beside) / 1e6


@contextlib.contextmanager
def parts(directory: Path, options: argparse.Namespace) -> Iterator[tuple[Steps, EngineProcess, TorchLearner]]:
    engine_process._run = run_engine  # type: ignore[assignment]
    with weights_directory() as scratch, contextlib.ExitStack() as stack:
        steps = Steps(scratch, "w+")
        process = EngineProcess(directory, scratch, dtype=options.dtype, threads=options.threads, seed=0)
        stack.callback(process.close)
        learner = make_learner(
            directory,
            optimizer=OptimizerConfig(),
            lora=LoraConfig(rank=8) if options.lora else None,
            max_steps=1,
            seed=0,
            threads=options.threads,
            publish_directory=scratch,
            publish_dtype=options.dtype,
        )
        stack.callback(learner.close)
        yield steps, process, learner


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
    AutoTokenizer.from_pretrained(tiny.path()).save_pretrained(directory)
    os.sync()  # or it is written during the measurement


async def measure(steps: Steps, process: EngineProcess, learner: TorchLearner, options: argparse.Namespace) -> Figures:
    copy_ms = copy_of(learner, getattr(torch, options.dtype))
    asked_ms = 5.0 if learner.parameters < 100e6 else 1.5 * copy_ms
    engine = process.engine()
    requests = [asyncio.create_task(endless(engine, row)) for row in range(options.rows)]
    await steps.more(SETTLE_STEPS)
    first, seen = Updates(), Updates()
    for number in range(MAPPED_FIRST + options.updates):
        learner.version += 1
        await observe(engine, process.pid, learner, steps, first if number < MAPPED_FIRST else seen)
    for task in requests:
        task.cancel()
    await asyncio.gather(*requests, return_exceptions=True)
    sample = await engine.sample(SampleRequest([1, 2, 3], SamplingParams(max_tokens=2, seed=0)))
    assert [run.version for run in sample.versions] == [learner.version], "the engine samples with other weights"
    await engine.close()
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return Figures(
        parameters=learner.parameters,
        gap_ms=statistics.median(seen.usual),
        pause_ms=max(seen.pause),
        median_pause_ms=statistics.median(seen.pause),
        alone_ms=max(seen.alone),
        first_ms=max(first.pause),
        lost_ms=statistics.median(seen.lost),
        noise_ms=max(seen.noise),
        median_noise_ms=statistics.median(seen.noise),
        work_ms=statistics.median(seen.work),
        load_ms=statistics.median(seen.load),
        publish_ms=statistics.median(seen.publish),
        beside_ms=statistics.median(seen.beside),
        copy_ms=copy_ms,
        asked_ms=asked_ms,
        over=statistics.fmean(pause > asked_ms for pause in seen.pause),
        noise_over=statistics.fmean(noise > asked_ms for noise in seen.noise),
        peak_gib=int(peak) / 2**20,
    )


async def observe(engine: RemoteEngine, pid: int, learner: TorchLearner, steps: Steps, seen: Updates) -> None:
    """One update, and the gaps around it."""
    quiet_since = time.perf_counter()
    await steps.more(SETTLE_STEPS)
    quiet_until = time.perf_counter()
    publish_ms, work_ms, load_since, load_until = await take(engine, pid, learner, steps)
    quiet = steps.gaps_within(quiet_since, quiet_until)[:, 0]
    usual = float(np.median(quiet))
    busy, waited = steps.gaps(load_since, load_until, after=AFTER_STEPS).T
    beside = steps.gaps(quiet_until, quiet_until + publish_ms / 1e3)[:, 0]
    seen.usual.append(usual)
    seen.pause.append(longer(busy, usual))
    seen.alone.append(longer(busy - waited, usual))
    seen.lost.append(float((busy - usual).sum()))
    seen.noise.append(longer(quiet[-len(busy) :], usual))
    seen.work.append(work_ms)
    seen.load.append((load_until - load_since) * 1e3)
    seen.publish.append(publish_ms)
    seen.beside.append(longer(beside, usual))


def longer(gaps: NDArray[np.float64], usual: float) -> float:
    """By how much the longest is."""
    return max(0.0, float(gaps.max()) - usual)


async def take(
    engine: RemoteEngine, pid: int, learner: TorchLearner, steps: Steps
) -> tuple[float, float, float, float]:
    """Publish and load: milliseconds of publishing and of other threads' work, start and end of loading."""
    began = time.perf_counter()
    update = learner.publish()
    publish_ms = (time.perf_counter() - began) * 1e3
    await steps.more(AFTER_STEPS)
    worked = work_beside(pid)
    since = time.perf_counter()
    await engine.load_weights(update)
    until = time.perf_counter()
    work_ms = work_beside(pid) - worked
    await steps.more(AFTER_STEPS + 2)
    return publish_ms, work_ms, since, until


async def endless(engine: RemoteEngine, row: int) -> None:
    """One row that never ends: with each answer the next begins."""
    while True:
        params = SamplingParams(max_tokens=MOST_TOKENS, seed=row)
        await engine.sample(SampleRequest([1 + row, 2, 3, 4], params))


def copy_of(learner: TorchLearner, dtype: torch.dtype) -> float:
    source = torch.ones(learner.parameters, dtype=dtype)
    target = source.clone()
    return min(milliseconds(lambda: target.copy_(source)) for _ in range(3))


def milliseconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


COLUMNS = (
    *("gap", "pause", "median", "alone", "first", "lost", "noise", "median"),
    *("work", "load", "publish", "beside", "copy", "requested"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lora", action="store_true", help="publish an adapter, which the engine merges")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found: dict[str, Figures] = {}
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as model:
            checkpoint(Path(model), size)
            with parts(Path(model), options) as (steps, process, learner):
                found[size] = asyncio.run(measure(steps, process, learner, options))
    if not options.json:
        print(f"{'ms':>6}" + "".join(f"{name:>8}" for name in COLUMNS) + f"{'over':>11}{'peak':>11}")
        for size, row in found.items():
            _, *times, over, noise_over, peak = asdict(row).values()
            shares = f"{over:.0%}, {noise_over:.0%}"
            print(f"{size:>6}" + "".join(f"{value:>8.1f}" for value in times) + f"{shares:>11}{peak:>7.1f} GiB")
    settings = {name: getattr(options, name) for name in ("rows", "updates", "dtype", "threads", "lora")}
    print(
        json.dumps(
            {"benchmark": "weight_updates", **settings, "sizes": {size: asdict(row) for size, row in found.items()}}
        )
    )


if __name__ == "__main__":
    main()
