"""The loop over a real stream of rollouts: a batch is learned in parts, and a step happens whole or not at all."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whet
from whet.errors import OverlongPromptError, TrainingError
from whet.inference.protocol import WeightUpdate
from whet.rl.config import RunConfig
from whet.rl.data.adaptive_weights import AdaptiveWeights
from whet.rl.data.assembly import RewardShaper
from whet.rl.data.curriculum import MixedCurriculum, Pool
from whet.rl.learner.protocol import LossOutput, OptimOutput, OptimParams, TokenValues
from whet.rl.loop.group_runner import GroupRunner, TrainingEnv
from whet.rl.loop.orchestrator import Orchestrator, StopRequested
from whet.rl.loop.rollout_buffer import Lead, RolloutBuffer
from whet.rl.loop.sources import AsyncSource
from whet.rl.loop.training_loop import RunBlocking, inline
from whet.rl.monitors import MonitorGroup
from whet.rl.storage.checkpoints import newest_checkpoint
from whet.rl.storage.records import CURRICULUM, Ledger, Records
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
        self.asked.append(f"step over {params.denominator:g} tokens")
        return OptimOutput(grad_norm=1.0, learning_rate=params.learning_rate, version=self.version)

    def publish(self) -> WeightUpdate:
        return WeightUpdate(self.version, Path())

    def metrics(self) -> dict[str, float]:
        return {}

    def save(self, directory: Path) -> None: ...

    def close(self) -> None: ...


class ComparingLearner(Learner):
    """Its logprobs differ from the sampler's by 0.02 where the token is of its weights, by 0.3 where it is older."""

    def __init__(self) -> None:
        super().__init__()
        self.probed: list[int] = []  # tokens of which only the logprobs were requested
        self.stale: list[int] = [0]  # tokens of older weights, step by step

    def forward_backward(self, batch: Any, loss: Any) -> LossOutput:
        output = super().forward_backward(batch, loss)
        difference = np.where(batch.versions < self.version, 0.3, 0.02)[batch.trained]
        self.stale[-1] += int((difference == 0.3).sum())
        output.sums["kl"] = float((np.expm1(difference) - difference).sum())
        logprobs = batch.logprobs.copy()
        logprobs[batch.trained] += difference
        output.values = TokenValues(logprobs, np.zeros(len(logprobs), bool))
        return output

    def token_logprobs(self, batch: Any) -> Any:
        assert (batch.versions[batch.trained] == self.version).all()
        self.probed.append(batch.trained_tokens)
        return np.where(batch.trained, batch.logprobs + 0.02, 0).astype(np.float32)

    def optim_step(self, params: OptimParams) -> OptimOutput:
        self.stale.append(0)
        return super().optim_step(params)


class Engine:
    version = 0
    recomputes = False

    async def load_weights(self, update: WeightUpdate) -> None:
        self.version = update.version

    def metrics(self) -> dict[str, float]:
        return {}

    def __init__(self, overlong: Callable[[int], bool] = lambda task: False) -> None:
        self.overlong = overlong  # tasks whose prompts do not fit

    def answer(self, sampling_args: dict[str, Any], prompt: Any) -> Response:
        if self.overlong(int(prompt[-1]["content"])):
            raise OverlongPromptError("too long")
        versions = [[self.version, TOKENS]]
        tokens = ResponseTokens([1, 2], [3] * TOKENS, [-0.5] * TOKENS, policy_version=versions)
        text = str(sampling_args["seed"] % 2)
        message = ResponseMessage(text, finish_reason="stop", is_truncated=False, tokens=tokens)
        return Response(id="", model="scripted", message=message)


def run(
    directory: Path,
    learner: Learner,
    *,
    steps: int,
    parts: int,
    stop: asyncio.Event | None = None,
    run_blocking: RunBlocking = inline,
    overlong: Callable[[int], bool] = lambda task: False,
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
    rubric = whet.Rubric([lambda completion: float(completion[-1]["content"]) if completion else 0.0])
    env = whet.SingleTurnEnv(dataset=[{"question": "?", "answer": ""}], rubric=rubric)
    engine = Engine(overlong)
    client = whet.ScriptedClient(engine.answer)
    # one group after the other, so that no batch is there at once
    runner = GroupRunner([TrainingEnv("scripted", env, rows)], client, "scripted", {}, GROUP, GROUP, seed=0)
    source = AsyncSource(
        runner, MixedCurriculum([Pool("scripted", 100)], seed=0), RolloutBuffer(Lead(GROUPS, parts=parts))
    )
    place = RunDirectory(config.directory)
    place.open(config, resume=False)
    doubles: dict[str, Any] = {"engine": engine, "learner": learner}
    orchestrator = Orchestrator(
        config=config,
        source=source,
        last_step=config.max_steps,
        records=Records(place, keep_checkpoints=1),
        monitor=MonitorGroup([]),
        shaper=RewardShaper(config.algorithm),
        adaptive=AdaptiveWeights(config.algorithm),
        stop=stop or asyncio.Event(),
        run_blocking=run_blocking,
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


def test_parts_of_a_batch_in_which_no_rollout_has_a_token_are_skipped(tmp_path: Path) -> None:
    learner = ComparingLearner()
    place, _ = run(tmp_path, learner, steps=6, parts=4, overlong=lambda task: bool(task % 3))
    lines = [json.loads(line) for line in place.metrics.read_text().splitlines()]
    steps = [asked for asked in learner.asked if isinstance(asked, str)]
    assert len(lines) == len(steps) == 6
    assert {int(asked.split()[2]) for asked in steps} < {TOKENS * GROUP * groups for groups in range(1, GROUPS)}
    assert all(line["rollouts/truncated_frac"] > 0 and line["policy/kl"] > 0 for line in lines)


@pytest.mark.parametrize("parts", [1, 4])
def test_a_batch_in_which_no_rollout_has_a_token_stops_the_run_and_says_why(tmp_path: Path, parts: int) -> None:
    with pytest.raises(TrainingError, match="no rollout of the batch has a token that the policy sampled"):
        run(tmp_path, Learner(), steps=1, parts=parts, overlong=lambda task: True)


async def in_turn(work: Any) -> Any:
    """Work of a learner elsewhere: whatever may be sampled meanwhile has been sampled when it is done."""
    for _ in range(1000):
        await asyncio.sleep(0)
    return work()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_kl_is_split_by_the_fresh_tokens_of_a_batch_or_of_rollouts_that_wait(tmp_path: Path, elsewhere: bool) -> None:
    learner = ComparingLearner()
    place, _ = run(tmp_path, learner, steps=6, parts=4, run_blocking=in_turn if elsewhere else inline)
    lines = [json.loads(line) for line in place.metrics.read_text().splitlines()]
    engine, older = (np.expm1(difference) - difference for difference in (0.02, 0.3))
    assert [line["policy/kl_engine"] for line in lines] == pytest.approx([engine] * 6, rel=1e-4)
    assert [line["policy/logprob_diff_max"] for line in lines] == pytest.approx([0.02] * 6, rel=1e-4)
    batch = GROUPS * GROUP * TOKENS
    for line, stale in zip(lines, learner.stale[:-1], strict=True):
        if stale:
            assert line["policy/kl_stale"] == pytest.approx(stale / batch * (older - engine), rel=1e-4)
        else:
            assert "policy/kl_stale" not in line
    if elsewhere:  # all but the first batch are sampled whole by the weights before
        assert learner.stale == [0, *[batch] * 5, 0]
        assert len(learner.probed) == 5
        assert [line["policy/fresh_frac"] for line in lines[1:]] == [count / batch for count in learner.probed]
    else:
        assert any(learner.stale)
        assert learner.probed == []
