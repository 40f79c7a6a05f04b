"""Training groups in worker processes against the run's own: rollouts per second where environments compute.

    python benchmarks/env_workers.py [--repetitions 5] [--letters 600] [--groups 32] [--json]

The environment is reverse-text with long texts, whose reward compares two texts letter by letter. The policy is
scripted and answers at once, so that what is measured are the environment, the scoring and the way to and from a
worker. Groups of 8 rollouts are all in flight at once, as in training. Sides take turns; ratios are to this process in
the same round. Workers are ready before the clock starts. With few letters it shows what a worker costs a rollout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from string import ascii_lowercase
from typing import Any

from whet.clients.client import Client
from whet.rl.data.curriculum import DrawnTask
from whet.rl.loop.group_runner import GroupRunner, TrainingEnv, environment_workers
from whet.rl.plan import training_env
from whet.rl.sections.training import TrainingEnvConfig
from whet.types import Response, ResponseMessage, ResponseTokens, Usage

GROUP = 8
SIDES = (0, 1, 2)
"""Worker processes; 0 is this process."""


class Scripted(Client[None, Any, Any, Any]):
    """Answers at once: a text of so many letters, with a token for every four."""

    def __init__(self, letters: int) -> None:
        super().__init__(None)
        self._letters, self._rng = letters, random.Random(0)

    async def get_response(self, prompt: Any, model: str, *_: Any, **__: Any) -> Response:
        said = "".join(self._rng.choices(ascii_lowercase, k=self._letters))
        count = self._letters // 4 + 1
        tokens = ResponseTokens(list(range(count)), list(range(count)), [-0.5] * count, [[0, count]])
        message = ResponseMessage(said, finish_reason="stop", tokens=tokens)
        return Response(id="scripted", model=model, message=message, usage=Usage(count, count))


@asynccontextmanager
async def runner_of(workers: int, section: TrainingEnvConfig, env: TrainingEnv, client: Any) -> AsyncIterator[Any]:
    """A runner of groups whose workers, if it has any, are ready."""
    runner = GroupRunner([env], client, "scripted", {}, GROUP, 512, 0)
    if not workers:
        yield runner
        return
    pool = environment_workers(
        [section], [env], client, runner.recipe, print, workers=workers, max_concurrent=512, in_order=False
    )
    async with pool:
        runner.workers = pool
        await measure(runner, 4 * workers)
        yield runner


async def measure(runner: GroupRunner, groups: int, first: int = 0) -> float:
    """Rollouts per second."""
    tasks = [DrawnTask(first + number, 0, number % 64, 0) for number in range(groups)]
    began = time.perf_counter()
    found = await asyncio.gather(*(runner.run(slot, task) for slot, task in enumerate(tasks)))
    seconds = time.perf_counter() - began
    assert not any(group.errors for group in found)
    return groups * GROUP / seconds


async def compare(repetitions: int, letters: int, groups: int) -> dict[int, list[float]]:
    """Rollouts per second of each side in each round."""
    sizes = {"num_train": 64, "num_eval": 4, "min_length": letters, "max_length": letters}
    section = TrainingEnvConfig(id="reverse-text", args=sizes)
    env, client = training_env(section), Scripted(letters)
    found: dict[int, list[float]] = {side: [] for side in SIDES}
    for _ in range(repetitions):
        for side in SIDES:
            async with runner_of(side, section, env, client) as runner:
                found[side].append(await measure(runner, groups, first=1000))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--letters", type=int, default=600, help="of a text; scoring grows faster than they do")
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(compare(options.repetitions, options.letters, options.groups))
    if options.json:
        print(json.dumps(found))
        return
    for side, speeds in found.items():
        ratios = [speed / here for speed, here in zip(speeds, found[0], strict=True)]
        name = f"{side} worker{'s' * (side != 1)}" if side else "this process"
        print(
            f"{name:14} {statistics.median(speeds):8.1f} rollouts/s    "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
