"""Three engines in processes of their own, one of which is killed in mid-request, again and again.

Groups are sampled all the time, half of them streamed, and new weights arrive before and after kills. Each rollout has
one answer, the ids that were streamed are those of the answer, and each logprob is that of the weights which its
version names.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from process_members import EmbeddedMember, ProcessMember, VllmServerMember
from transformers import AutoModelForCausalLM

import whet.system.children
from whet.inference.architecture import read_architecture
from whet.inference.model_names import resolve_model
from whet.inference.pool.engine_pool import EnginePool
from whet.inference.pool.health import RestartPolicy
from whet.inference.protocol import Sample, SampleRequest, SamplingParams, VersionRun, WeightUpdate
from whet.inference.weights.model_weights import packed_tensors, read_checkpoint
from whet.inference.weights.packed_file import write_packed

pytestmark = [pytest.mark.parts, pytest.mark.timeout(1800)]

GROUPS, ROLLOUTS, TOKENS = 6, 4, 120
PRELOADED = [
    "transformers",
    "uvicorn",
    "whet.gateway.engine_server",
    "whet.inference.loading",
    "whet.inference.embedded",
]
Reference = Callable[..., torch.Tensor]


class Weights:
    """Published as a learner does it: packed for embedded engines, of which the newest two files stay, or whole."""

    def __init__(self, directory: Path, *, packed: bool) -> None:
        model = resolve_model("whet/tiny")
        self._directory, self._packed, self._arch = directory, packed, read_architecture(model)
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
        checkpoint = self._directory / f"model-{version % 3}"
        if not self._packed:
            return WeightUpdate(version, checkpoint / "model.safetensors")
        path = self._directory / f"weights-{version:08d}.packed"
        named = read_checkpoint(checkpoint)
        write_packed(path, packed_tensors(named, self._arch, dtype=torch.float32, device=torch.device("cpu")))
        for older in sorted(self._directory.glob("weights-*.packed"))[:-2]:
            older.unlink()
        return WeightUpdate(version, path, "packed")


@pytest.fixture(autouse=True)
def quick_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of a server that has imported torch and computes nothing."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    monkeypatch.setattr(whet.system.children, "START_METHOD", "forkserver")


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


@dataclass
class Answer:
    request: SampleRequest
    streamed: bool
    heard: list[int] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


def groups(number: int, attempt: int) -> list[Answer]:
    found = []
    for group in range(GROUPS):
        key = f"{number}-{attempt}-{group}"
        prompt = [(7 * number + 11 * group + place) % 200 for place in range(20)]
        for rollout in range(ROLLOUTS):
            params = SamplingParams(max_tokens=TOKENS, seed=1000 * number + 10 * group + rollout)
            request = SampleRequest(prompt, params, group_key=key, rollout_key=f"{key}-{rollout}")
            found.append(Answer(request, streamed=bool(rollout % 2)))
    return found


class Kills:
    """Kills members of a pool, one at a time, and checks what was answered meanwhile."""

    def __init__(self, members: list[ProcessMember], weights: Weights, reference: Reference, kills: int) -> None:
        self.members, self.weights, self.reference, self.kills = members, weights, reference, kills
        restarts = RestartPolicy(max_restarts=kills, first_pause_s=0.01, longest_pause_s=0.05)
        self.pool = EnginePool(members, restarts=restarts)
        self.compared = 0

    async def run(self) -> None:
        try:
            for number in range(self.kills):
                await self._kill(number)
        finally:
            await self.pool.close()

    async def _kill(self, number: int) -> None:
        pool, victim = self.pool, self.members[number % 3]
        answers, tasks = await self._begun(number, victim)
        if number % 4 == 1:  # the dying engine may be the one that takes them
            tasks.append(asyncio.create_task(pool.load_weights(self.weights.publish(number))))
            await asyncio.sleep(0)
        assert pool.metrics()[f"engine/{victim.name}/queue"], "it has requests in flight"
        victim.kill()
        if number % 4 == 2:  # while it is down or starts
            await until(lambda: pool.metrics()["engine/healthy"] == 2)
            await pool.load_weights(self.weights.publish(number))
        await asyncio.gather(*tasks)
        for answer in answers:
            self._check(answer)
        await until(lambda: pool.metrics()["engine/restarts"] == number + 1 and pool.metrics()["engine/healthy"] == 3)
        await self._check_weights(victim)

    async def _begun(self, number: int, victim: ProcessMember) -> tuple[list[Answer], list[asyncio.Task[None]]]:
        """Answers, of which the victim is in the middle of one; more, where all have ended before that was seen."""
        answers: list[Answer] = []
        tasks: list[asyncio.Task[None]] = []

        def begun() -> bool:
            return any(len(ids) > (7 * number) % 60 for ids in victim.arrived)

        def over() -> bool:
            return all(task.done() for task in tasks)

        for attempt in itertools.count():
            more = groups(number, attempt)
            answers.extend(more)
            tasks.extend(asyncio.create_task(self._sample(answer)) for answer in more)
            await until(lambda: begun() or over())
            if begun():
                break
        return answers, tasks

    async def _sample(self, answer: Answer) -> None:
        options: dict[str, Any] = {"on_tokens": answer.heard.extend} if answer.streamed else {}
        answer.samples.append(await self.pool.sample(answer.request, **options))
        await self.pool.release(str(answer.request.rollout_key))

    def _check(self, answer: Answer) -> None:
        """An answer that ran through an update may have keys of two versions: its logprobs are not compared."""
        (sample,) = answer.samples
        assert len(sample.ids) == len(sample.logprobs) == TOKENS
        assert sum(run.count for run in sample.versions) == TOKENS
        assert not answer.streamed or answer.heard == sample.ids
        if len(sample.versions) == 1:
            self._compare(answer.request.prompt_ids, sample)
            self.compared += 1

    async def _check_weights(self, member: ProcessMember) -> None:
        """Those that the member has now, whatever it says of them."""
        prompt = [5, 6, 7]
        sample = await member.engine.sample(SampleRequest(prompt, SamplingParams(max_tokens=8, seed=1)))
        assert sample.versions == [VersionRun(self.pool.version, 8)]
        self._compare(prompt, sample)

    def _compare(self, prompt: list[int], sample: Sample) -> None:
        expected = self.reference(self.weights.models[sample.versions[0].version % 3], prompt, sample.ids)
        assert torch.allclose(torch.tensor(sample.logprobs), expected, atol=2e-3)


def check_kills(members: list[ProcessMember], weights: Weights, reference: Reference, count: int) -> None:
    kills = Kills(members, weights, reference, count)
    asyncio.run(kills.run())
    assert kills.pool.metrics()["engine/restarts"] == count
    assert kills.compared > count * GROUPS, "most were compared with a plain forward pass"
    lost = [tokens for member in members for tokens in member.lost]
    assert len(lost) >= count, "each kill was in mid-request"
    assert sum(0 < tokens < TOKENS for tokens in lost) >= count, "and streamed answers were continued"
    pids = [pid for member in members for pid in member.pids]
    assert len(pids) == 3 + count
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("kills", [6, pytest.param(20, marks=pytest.mark.long)])
def test_killed_embedded_engines_lose_no_group_and_return_with_the_newest_weights(
    tmp_path: Path, reference: Reference, kills: int
) -> None:
    members = [EmbeddedMember(str(number)) for number in range(3)]
    check_kills([*members], Weights(tmp_path, packed=True), reference, kills)


@pytest.mark.long
@pytest.mark.parametrize("kills", [3, 20])
def test_a_killed_vllm_server_loses_no_group_and_returns_with_the_newest_weights(
    tmp_path: Path, reference: Reference, vllm_servers: Any, kills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in vllm_servers.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    members = [VllmServerMember("0", vllm_servers.python()), EmbeddedMember("1"), EmbeddedMember("2")]
    check_kills(members, Weights(tmp_path, packed=False), reference, kills)
