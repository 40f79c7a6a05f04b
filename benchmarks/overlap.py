"""How much of a training step is hidden: the real loop with a simulated engine and a simulated learner.

    python benchmarks/overlap.py [--steps 30] [--sigma 1.0] [--json]

Rollouts take log-normal times (`--sigma`; at 1.0 the slowest of 64 takes some eleven medians) on an engine that serves
`--capacity` at once, and a learner needs as long for a batch as the engine would, were it always full: the hardest
case, in which neither hides behind the other. Orchestrator, stream, backlog, curriculum and records are those of a real
run.

The figure is max(generate, train) / step time, where `generate` is the engine's work for one batch at full capacity: 1
is what no schedule can beat. `in flight` is the share of the time in which anything was being sampled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import whet
from whet.inference.protocol import WeightUpdate
from whet.rl.config import RunConfig
from whet.rl.data.assembly import RewardShaper
from whet.rl.data.curriculum import MixedCurriculum, Pool
from whet.rl.learner.protocol import LossOutput, OptimOutput
from whet.rl.loop.group_runner import GroupRunner, TrainingEnv
from whet.rl.loop.orchestrator import Orchestrator
from whet.rl.loop.rollout_buffer import PARTS, Lead, RolloutBuffer
from whet.rl.loop.sources import AsyncSource, SyncSource
from whet.rl.loop.training_loop import inline
from whet.rl.monitors import Monitor, MonitorGroup
from whet.rl.storage.records import Records
from whet.rl.storage.run_directory import RunDirectory
from whet.types import Response, ResponseMessage, ResponseTokens

GROUPS, GROUP = 16, 4
WARM_UP = 5  # steps that are left out: nothing can hide the first batch
SCHEDULES: list[tuple[str, dict[str, Any]]] = [
    ("synchronous", {"max_async_level": 0}),
    ("level 1", {"max_async_level": 1}),
    ("level 1, oversampling 1.5", {"max_async_level": 1, "oversampling_factor": 1.5}),
    ("level 2", {"max_async_level": 2}),
    ("level 3", {"max_async_level": 3}),
]


@dataclass
class SimulatedEngine:
    """Serves `capacity` requests at once; how long each takes follows from its seed alone."""

    capacity: int
    mean_s: float
    sigma: float
    version: int = 0
    recomputes: ClassVar[bool] = False
    work_s: float = 0.0  # of all requests so far
    _places: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.capacity)

    async def answer(self, sampling_args: dict[str, Any]) -> Response:
        chance = random.Random(sampling_args["seed"])
        seconds = self.mean_s * chance.lognormvariate(-(self.sigma**2) / 2, self.sigma)
        async with self._places:
            version = self.version
            await asyncio.sleep(seconds)
        self.work_s += seconds
        tokens = ResponseTokens([1, 2], [3, 4], [-0.5, -0.5], policy_version=[[version, 2]])
        message = ResponseMessage(str(chance.randrange(2)), finish_reason="stop", is_truncated=False, tokens=tokens)
        return Response(id="", model="simulated", message=message)

    async def load_weights(self, update: WeightUpdate) -> None:
        self.version = update.version


@dataclass
class SimulatedLearner:
    """Takes `seconds` for a batch, as a learner in its own process: the event loop continues."""

    seconds: float
    version: int = 0

    def forward_backward(self, batch: Any, loss: Any) -> LossOutput:
        time.sleep(self.seconds * batch.sequences / (GROUPS * GROUP))
        return LossOutput(loss=0.0, tokens=batch.trained_tokens)

    def optim_step(self, params: Any) -> OptimOutput:
        self.version += 1
        return OptimOutput(grad_norm=1.0, learning_rate=params.learning_rate, version=self.version)

    def publish(self) -> WeightUpdate:
        return WeightUpdate(self.version, Path())

    def save(self, directory: Path) -> None: ...


class StepEnds(Monitor):
    """A monitor that notes when each step ended, its records written."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def step(self, report: Any) -> None:
        self.at.append(time.perf_counter())


async def measure(schedule: dict[str, Any], options: argparse.Namespace, directory: Path) -> dict[str, float]:
    rollouts = GROUPS * GROUP
    generate_s = options.mean * rollouts / options.capacity
    config = RunConfig(
        name="run",
        env=({"id": "simulated"},),
        max_steps=options.steps,
        batch_size=rollouts,
        rollouts_per_example=GROUP,
        runs_directory=directory,
        eval={"before": False, "after": False},
        checkpointing={"save_every_n_steps": options.steps},
        **schedule,
    )
    engine = SimulatedEngine(options.capacity, options.mean, options.sigma)
    rows: list[Any] = [{"prompt": [{"role": "user", "content": str(n)}], "example_id": n} for n in range(1000)]
    rubric = whet.Rubric([lambda completion: float(completion[-1]["content"])])
    env = whet.SingleTurnEnv(dataset=[{"question": str(n), "answer": ""} for n in range(1000)], rubric=rubric)
    client = whet.ScriptedClient(lambda sampling_args: engine.answer(sampling_args))
    runner = GroupRunner([TrainingEnv("simulated", env, rows)], client, "simulated", {}, GROUP, 10_000, options.seed)
    curriculum = MixedCurriculum([Pool("simulated", len(rows))], seed=options.seed)
    lead = Lead(config.groups_per_batch, config.max_async_level, config.oversampling_factor, parts=PARTS)
    source: Any = (
        AsyncSource(runner, curriculum, RolloutBuffer(lead))
        if config.asynchronous
        else SyncSource(runner, curriculum, GROUPS)
    )
    run = RunDirectory(config.directory)
    run.open(config, resume=False)
    ends = StepEnds()
    parts: dict[str, Any] = {"engine": engine, "learner": SimulatedLearner(generate_s)}
    orchestrator = Orchestrator(
        config=config,
        source=source,
        last_step=config.max_steps,
        records=Records(run, keep_checkpoints=1),
        monitor=MonitorGroup([ends]),
        shaper=RewardShaper(config.algorithm),
        run_blocking=asyncio.to_thread if config.asynchronous else inline,
        **parts,
    )
    try:
        await orchestrator.run(1)
    finally:
        await source.close()
        run.close()
    step_s = (ends.at[-1] - ends.at[WARM_UP - 1]) / (options.steps - WARM_UP)
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()][WARM_UP:]

    def mean(name: str) -> float:
        return float(sum(line[name] for line in lines) / len(lines))

    return {
        "step_s": step_s,
        "ratio": generate_s / step_s,
        "in_flight": mean("time/generate") / mean("time/step"),
        "staleness": mean("staleness/mean"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--capacity", type=int, default=16, help="requests that the engine serves at once")
    parser.add_argument("--mean", type=float, default=0.15, help="mean seconds of a rollout")
    parser.add_argument(
        "--sigma", type=float, default=1.0, help="standard deviation of the logarithm of a rollout's time"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    options = parser.parse_args()
    found = {}
    for name, schedule in SCHEDULES:
        with tempfile.TemporaryDirectory() as directory:
            found[name] = asyncio.run(measure(schedule, options, Path(directory)))
    if not options.json:
        print(f"{'schedule':<28} {'s a step':>9} {'ratio':>7} {'in flight':>10} {'staleness':>10}")
        for name, row in found.items():
            figures = f"{row['step_s']:>9.3f} {row['ratio']:>7.3f} {row['in_flight']:>9.0%} {row['staleness']:>10.2f}"
            print(f"{name:<28} {figures}")
    print(json.dumps({"benchmark": "overlap", "sigma": options.sigma, **found}))


if __name__ == "__main__":
    main()
