"""Three embedded engines in processes of their own, one of which is killed in mid-request, again and again.

Groups are sampled all the time, half of them streamed, and new weights arrive before and after kills. Each rollout has
one answer, the ids that were streamed are those of the answer, and each logprob is that of the weights which its
version names.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import whet.rl.supervision.engine_process
import whet.rl.supervision.processes
from whet.errors import EndpointDownError
from whet.inference.architecture import read_architecture
from whet.inference.continuation import SampleLostError
from whet.inference.model_names import resolve_model
from whet.inference.pool.engine_pool import EnginePool
from whet.inference.pool.health import RestartPolicy
from whet.inference.protocol import OnTokens, Sample, SampleRequest, SamplingParams, VersionRun, WeightUpdate
from whet.inference.remote.remote_engine import RemoteEngine
from whet.inference.weights.model_weights import packed_tensors, read_checkpoint
from whet.inference.weights.packed_file import write_packed
from whet.rl.supervision.engine_process import EngineProcess

pytestmark = pytest.mark.parts

KILLS = 20
GROUPS, ROLLOUTS, TOKENS = 6, 4, 120
PRELOADED = [
    "transformers",
    "uvicorn",
    "whet.gateway.engine_server",
    "whet.inference.loading",
    "whet.inference.embedded",
]


class NotedEngine(RemoteEngine):
    """Notes what has arrived of each streamed answer in progress, and had of those that were lost."""

    lost: list[int]
    arrived: list[list[int]]

    async def sample(self, request: SampleRequest, *, on_tokens: OnTokens | None = None) -> Sample:
        heard: list[int] = []
        self.arrived.append(heard)

        def hear(ids: list[int]) -> None:
            heard.extend(ids)
            assert on_tokens is not None
            on_tokens(ids)

        try:
            return await super().sample(request, on_tokens=None if on_tokens is None else hear)
        except EndpointDownError as error:
            self.lost.append(len(error.part.ids) if isinstance(error, SampleLostError) else 0)
            raise
        finally:
            self.arrived[:] = [other for other in self.arrived if other is not heard]


class EmbeddedMember:
    """whet/tiny in a process; its directory goes with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process: EngineProcess | None = None
        self.engine: NotedEngine | None = None
        self.pids: list[int] = []
        self.lost: list[int] = []
        self.arrived: list[list[int]] = []
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    async def start(self) -> NotedEngine:
        self._directory = tempfile.TemporaryDirectory()
        self.process = EngineProcess(resolve_model("whet/tiny"), Path(self._directory.name), threads=1)
        self.pids.append(self.process.pid)
        self.engine = await asyncio.to_thread(self.process.engine, EndpointDownError)
        self.engine.lost, self.engine.arrived = self.lost, self.arrived
        return self.engine

    async def stop(self) -> None:
        if self.process is not None and self._directory is not None:
            self.process.close()
            self._directory.cleanup()

    def failure(self) -> str | None:
        return None if self.process is None else self.process.failure()

    def kill(self) -> None:
        os.kill(self.pids[-1], signal.SIGKILL)


@dataclass
class Answer:
    request: SampleRequest
    heard: list[int] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


class Weights:
    """Published as a learner does: a file for each version, of which the newest two stay."""

    def __init__(self, directory: Path) -> None:
        model = resolve_model("whet/tiny")
        self._directory, self._arch = directory, read_architecture(model)
        self.models = []
        for seed in range(3):  # version n has the weights of number n % 3; number 0 is the model itself
            changed: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
            torch.manual_seed(seed)
            with torch.no_grad():
                for parameter in changed.parameters() if seed else ():
                    parameter.mul_(1 + 0.1 * torch.randn_like(parameter))
            changed.save_pretrained(directory / f"model-{seed}")
            self.models.append(changed.eval())

    def publish(self, version: int) -> WeightUpdate:
        named = read_checkpoint(self._directory / f"model-{version % 3}")
        path = self._directory / f"weights-{version:08d}.packed"
        write_packed(path, packed_tensors(named, self._arch, dtype=torch.float32, device=torch.device("cpu")))
        for older in sorted(self._directory.glob("weights-*.packed"))[:-2]:
            older.unlink()
        return WeightUpdate(version, path, "packed")


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    return Weights(tmp_path)


@pytest.fixture(autouse=True)
def quick_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of a server that has imported torch and computes nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    monkeypatch.setattr(whet.rl.supervision.processes, "START_METHOD", "forkserver")
    monkeypatch.setattr(whet.rl.supervision.engine_process, "RemoteEngine", NotedEngine)


@pytest.fixture
def members() -> list[EmbeddedMember]:
    return [EmbeddedMember(str(number)) for number in range(3)]


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def groups(round_number: int) -> list[Answer]:
    found = []
    for group in range(GROUPS):
        key = f"{round_number}-{group}"
        prompt = [(7 * round_number + 11 * group + number) % 200 for number in range(20)]
        for rollout in range(ROLLOUTS):
            params = SamplingParams(max_tokens=TOKENS, seed=1000 * round_number + 10 * group + rollout)
            found.append(Answer(SampleRequest(prompt, params, group_key=key, rollout_key=f"{key}-{rollout}")))
    return found


async def sample(pool: EnginePool, answer: Answer, *, streamed: bool) -> None:
    options: dict[str, Any] = {"on_tokens": answer.heard.extend} if streamed else {}
    answer.samples.append(await pool.sample(answer.request, **options))
    await pool.release(str(answer.request.rollout_key))


def check(answer: Answer, *, streamed: bool, weights: Weights, reference: Callable[..., torch.Tensor]) -> bool:
    """Whether its logprobs could be compared: those of an answer that ran through an update have mixed keys."""
    (sample,) = answer.samples
    assert len(sample.ids) == len(sample.logprobs) == TOKENS
    assert sum(run.count for run in sample.versions) == TOKENS
    assert not streamed or answer.heard == sample.ids
    if len(sample.versions) > 1:
        return False
    model = weights.models[sample.versions[0].version % 3]
    expected = reference(model, answer.request.prompt_ids, sample.ids)
    assert torch.allclose(torch.tensor(sample.logprobs), expected, atol=1e-3)
    return True


@pytest.mark.timeout(900)
def test_no_group_is_lost_or_answered_twice_and_a_killed_engine_returns_with_the_newest_weights(
    members: list[EmbeddedMember], weights: Weights, reference: Callable[..., torch.Tensor]
) -> None:
    restarts = RestartPolicy(max_restarts=KILLS, first_pause_s=0.01, longest_pause_s=0.05)
    pool = EnginePool(members, restarts=restarts)
    compared = 0

    async def one_kill(number: int) -> None:
        nonlocal compared
        answers, victim = groups(number), members[number % 3]
        tasks = [
            asyncio.create_task(sample(pool, answer, streamed=bool(place % 2))) for place, answer in enumerate(answers)
        ]
        await until(lambda: any(len(ids) > (7 * number) % 60 for ids in victim.arrived))
        loading = []
        if number % 3 == 1:  # the dying engine may be the one that takes them
            loading = [asyncio.create_task(pool.load_weights(weights.publish(number)))]
            await asyncio.sleep(0)
        assert pool.metrics()[f"engine/{victim.name}/queue"], "it has requests in flight"
        victim.kill()
        if number % 3 == 2:  # while it is down or restarts
            await until(lambda: pool.metrics()["engine/healthy"] == 2)
            await pool.load_weights(weights.publish(number))
        await asyncio.gather(*tasks, *loading)
        for place, answer in enumerate(answers):
            compared += check(answer, streamed=bool(place % 2), weights=weights, reference=reference)
        await until(lambda: pool.metrics()["engine/healthy"] == 3)
        assert len(victim.pids) == 2 + number // 3
        assert victim.engine is not None
        assert (await victim.engine.facts()).version == victim.engine.version == pool.version
        greedy = SampleRequest([5, 6, 7], SamplingParams(max_tokens=8, temperature=0.0))
        drawn = await victim.engine.sample(greedy)
        assert drawn.versions == [VersionRun(pool.version, 8)]
        expected = reference(weights.models[pool.version % 3], [5, 6, 7], drawn.ids)
        assert torch.allclose(torch.tensor(drawn.logprobs), expected, atol=1e-3)

    async def run() -> None:
        try:
            for number in range(KILLS):
                await one_kill(number)
        finally:
            await pool.close()

    asyncio.run(run())
    assert pool.metrics()["engine/restarts"] == KILLS
    assert compared > KILLS * GROUPS, "answers of one version alone were compared with a plain forward pass"
    lost = [tokens for member in members for tokens in member.lost]
    assert len(lost) >= KILLS, "each kill was in mid-request"
    assert sum(0 < tokens < TOKENS for tokens in lost) >= KILLS, "and streamed answers were continued"
    pids = [pid for member in members for pid in member.pids]
    assert len(pids) == 3 + KILLS
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
