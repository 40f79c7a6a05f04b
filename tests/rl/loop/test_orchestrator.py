"""The loop over a real stream of rollouts: a batch is learned in parts, and a step happens whole or not at all."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.inference.protocol import WeightUpdate
from whet.rl.config import RunConfig
from whet.rl.data.curriculum import MixedCurriculum, Pool
from whet.rl.data.reward_shaping import RewardShaper
from whet.rl.learner.protocol import LossOutput, OptimOutput, OptimParams
from whet.rl.loop.async_source import AsyncSource
from whet.rl.loop.group_runner import GroupRunner, TrainingEnv
from whet.rl.loop.orchestrator import Orchestrator, StopRequested
from whet.rl.loop.rollout_buffer import Lead, RolloutBuffer
from whet.rl.monitors import MonitorGroup
from whet.rl.storage.checkpoints import newest_checkpoint
from whet.rl.storage.ledger import Ledger
from whet.rl.storage.records import CURRICULUM, Records
from whet.rl.storage.run_directory import RunDirectory
from whet.types import Response, ResponseMessage, ResponseTokens

GROUPS, GROUP, TOKENS = 4, 2, 3


class Learner:
    """Notes what it is asked for: sequences of each part, and what gradients are divided by. Remembers no weights."""

    def __init__(self) -> None:
        self.version = 0
        self.asked: list[Any] = []
        self.on_part = lambda: None

    def forward_backward(self, batch: Any, loss: Any) -> LossOutput:
        self.asked.append(batch.sequences)
        self.on_part()
        return LossOutput(loss=float(batch.sequences), tokens=batch.trained_tokens, sums={"entropy": 1.0})

    def optim_step(self, params: OptimParams) -> OptimOutput:
        self.version += 1
        self.asked.append(f"step over {params.denominator} tokens")
        return OptimOutput(grad_norm=1.0, learning_rate=params.learning_rate, version=self.version)

    def publish(self) -> WeightUpdate:
        return WeightUpdate(self.version, Path())

    def save(self, directory: Path) -> None: ...

    def close(self) -> None: ...


class Engine:
    version = 0

    async def load_weights(self, update: WeightUpdate) -> None:
        self.version = update.version


def answer(sampling_args: dict[str, Any]) -> Response:
    tokens = ResponseTokens([1, 2], [3] * TOKENS, [-0.5] * TOKENS, policy_version=[[0, TOKENS]])
    message = ResponseMessage(str(sampling_args["seed"] % 2), finish_reason="stop", is_truncated=False, tokens=tokens)
    return Response(id="", model="scripted", message=message)


def run(
    directory: Path, learner: Learner, *, steps: int, parts: int, stop: asyncio.Event | None = None
) -> tuple[RunDirectory, AsyncSource]:
    config = RunConfig(
        name="run",
        env=({"id": "scripted"},),
        max_steps=steps,
        batch_size=GROUPS * GROUP,
        rollouts_per_example=GROUP,
        max_async_level=1,
        runs_directory=directory,
        eval={"before": False, "after": False},
    )
    rows = [{"prompt": [{"role": "user", "content": str(n)}], "example_id": n} for n in range(100)]
    rubric = whet.Rubric([lambda completion: float(completion[-1]["content"])])
    env = whet.SingleTurnEnv(dataset=[{"question": "?", "answer": ""}], rubric=rubric)
    client = whet.ScriptedClient(answer)
    # one group after the other, so that no batch is there at once
    runner = GroupRunner([TrainingEnv("scripted", env, rows)], client, "scripted", {}, GROUP, GROUP, seed=0)
    source = AsyncSource(
        runner, MixedCurriculum([Pool("scripted", 100)], seed=0), RolloutBuffer(Lead(GROUPS, parts=parts))
    )
    place = RunDirectory(config.directory)
    place.open(config, resume=False)
    doubles: dict[str, Any] = {"engine": Engine(), "learner": learner}
    orchestrator = Orchestrator(
        config=config,
        source=source,
        last_step=config.max_steps,
        records=Records(place, keep_checkpoints=1),
        monitor=MonitorGroup([]),
        shaper=RewardShaper(config.algorithm),
        stop=stop or asyncio.Event(),
        **doubles,
    )

    async def whole() -> None:
        try:
            await orchestrator.run(1)
        finally:
            await source.close()
            place.close()

    asyncio.run(whole())
    return place, source


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_step_learns_from_every_part_of_its_batch_and_divides_by_the_tokens_of_all(
    tmp_path: Path, parts: int
) -> None:
    learner = Learner()
    place, _ = run(tmp_path, learner, steps=3, parts=parts)
    for _ in range(3):
        at = learner.asked.index(f"step over {GROUPS * GROUP * TOKENS} tokens")
        sequences, learner.asked = learner.asked[:at], learner.asked[at + 1 :]
        assert sum(sequences) == GROUPS * GROUP
        assert (len(sequences) > 1) == (parts > 1)
    assert learner.asked == []
    lines = [json.loads(line) for line in place.metrics.read_text().splitlines()]
    assert [line["optim/loss"] for line in lines] == [pytest.approx(1 / TOKENS)] * 3
    assert [len(groups) for groups in Ledger(place.ledger).steps.values()] == [GROUPS] * 3


def test_a_run_that_is_stopped_within_a_batch_is_saved_as_of_the_step_before_and_attempts_the_batch_again(
    tmp_path: Path,
) -> None:
    stop, learner = asyncio.Event(), Learner()
    learner.on_part = lambda: stop.set() if learner.version == 1 else None
    with pytest.raises(StopRequested):
        run(tmp_path, learner, steps=3, parts=4, stop=stop)
    assert learner.asked[-2:] == [f"step over {GROUPS * GROUP * TOKENS} tokens", GROUP], "a part of the second batch"
    place = RunDirectory(tmp_path / "run")
    checkpoint, _ = newest_checkpoint(place.checkpoints)
    assert checkpoint is not None
    trained = Ledger(place.ledger).steps
    assert (list(trained), checkpoint.step) == ([1], 1)
    pending = {str(number) for number, *_ in json.loads((checkpoint.path / CURRICULUM).read_text())["pending"]}
    assert len(pending) >= GROUPS
    assert not pending & set(trained[1])
