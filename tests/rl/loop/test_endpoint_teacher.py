"""A teacher at an endpoint: whet's own gateway over HTTP, and servers that are no teachers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.clients.loopback import serving
from tests.gateway.running import running

from whet.errors import EndpointDownError, EndpointError, TrainingError
from whet.gateway.app import Gateway
from whet.inference.loading import Policy, load_policy
from whet.inference.model_names import resolve_model
from whet.inference.vllm.completions import PROBE
from whet.rl.config import RunConfig
from whet.rl.data.batch import PackedBatch, TokenSequence, pack
from whet.rl.learner.config import LearnerConfig, OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rl.loop.endpoint_teacher import EndpointTeacher
from whet.rl.run import run_training
from whet.rl.sections.teacher import TeacherConfig


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy("whet/tiny", threads=1)


@pytest.fixture(scope="module")
def address(policy: Policy) -> Iterator[str]:
    with running(Gateway({"tiny": policy.client})) as origin:
        yield f"{origin}/v1"


def batch(policy: Policy) -> PackedBatch:
    ids = policy.renderer.render([{"role": "user", "content": "Reverse the text: abc"}])
    trained = [False] * len(ids) + [True, False, True]
    sequences = [TokenSequence.demonstration([*ids, *said], trained) for said in ([64, 65, 258], [66, 67, 64])]
    return pack(sequences)


def answers(url: str, tokenizer: Any, shown: PackedBatch | None = None, **keys: Any) -> Any:
    async def requested() -> Any:
        teacher = EndpointTeacher(TeacherConfig(url=url, **{"max_retries": 0, **keys}), tokenizer)
        try:
            await teacher.check()
            return None if shown is None else await teacher.logprobs(shown)
        finally:
            await teacher.close()

    return asyncio.run(requested())


def test_a_served_model_gives_the_logprobs_that_a_learner_computes(
    policy: Policy, address: str, tmp_path: Path
) -> None:
    shown = batch(policy)
    computation = LearnerConfig(device="cpu", dtype="float32")
    options: dict[str, Any] = {"max_steps": 1, "seed": 0, "publish_directory": tmp_path, "computation": computation}
    learner = make_learner(resolve_model("whet/tiny"), optimizer=OptimizerConfig(), lora=None, **options)
    found = answers(address, policy.renderer.tokenizer, shown)
    np.testing.assert_allclose(found, learner.token_logprobs(shown), atol=2e-5)
    assert found[shown.trained].max() < 0


def test_a_run_learns_from_an_endpoint_as_from_the_same_model_here(address: str, tmp_path: Path) -> None:
    def metrics(name: str, **keys: Any) -> list[dict[str, float]]:
        given = {"max_steps": 2, "batch_size": 4, "rollouts_per_example": 2, "learning_rate": 1e-3}
        config = RunConfig.model_validate(
            {
                **given, "name": name, "env": [{"id": "reverse-text", "algorithm": "opsd"}], "runs_directory": tmp_path,
                "sampling": {"max_tokens": 8}, "eval": {"before": False, "after": False},
                "deployment": {"threads": 1}, "optimizer": {"type": "sgd"}, **keys,
            }
        )  # fmt: skip
        assert run_training(config, json_output=True).state == "finished"
        return [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]

    here = metrics("here", algorithm={"reference": "initial"})
    there = metrics("there", teacher={"url": address})
    assert abs(here[0]["policy/kl_teacher"]) > 0.1
    for one, other in zip(here, there, strict=True):
        for name in ("policy/kl_teacher", "optim/loss", "optim/grad_norm"):
            assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-4)


def test_another_tokenizer_or_another_temperature_is_refused(policy: Policy, address: str) -> None:
    other = SimpleNamespace(encode=lambda text, add_special_tokens: [1, 2, 3])
    with pytest.raises(TrainingError, match="tiny has other tokens"):
        answers(address, other)
    warm = pack([TokenSequence(**{**_fields(batch(policy)), "temperature": 0.7})])
    with pytest.raises(TrainingError, match="another temperature than 1"):
        answers(address, policy.renderer.tokenizer, warm)
    with pytest.raises(EndpointError, match="there is no model 'big'"):
        answers(address, policy.renderer.tokenizer, model="big")


def _fields(packed: PackedBatch) -> dict[str, Any]:
    stop = packed.cu_seqlens[1]
    return {name: getattr(packed, name)[:stop] for name in ("ids", "trained", "logprobs", "versions")}


def test_an_endpoint_that_is_no_teacher_is_refused_and_one_that_is_busy_asked_again() -> None:
    tokenizer = SimpleNamespace(encode=lambda text, add_special_tokens: [5, 6])

    def completion(**fields: Any) -> dict[str, Any]:
        choice = {"index": 0, "text": "", "finish_reason": "length", "logprobs": None, **fields}
        return {"id": "1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}

    ids, scored = completion(prompt_token_ids=[5, 6]), completion(prompt_logprobs=[None, {"6": {"logprob": -1.5}}])
    with serving() as server:
        server.plan = [(200, completion())]
        with pytest.raises(TrainingError, match="does not return token ids"):
            answers(server.url, tokenizer, model="m")
        server.plan = [(200, ids), (200, completion())]
        with pytest.raises(TrainingError, match="no log-probabilities of prompts"):
            answers(server.url, tokenizer, model="m")
        server.plan = [(200, ids), (200, completion(prompt_logprobs=[None, {"7": {"logprob": -1.5}}]))]
        with pytest.raises(TrainingError, match="returns None as the log-probability"):
            answers(server.url, tokenizer, model="m")
        server.plan = [(503, {}), (200, ids), (200, scored), (200, scored)]
        shown = pack([TokenSequence.demonstration([5, 6], [False, True])])
        assert answers(server.url, tokenizer, shown, model="m", max_retries=2).tolist() == [0, -1.5]
        assert server.requests[0]["prompt"] == PROBE
        server.plan = [(503, {})]
        with pytest.raises(EndpointDownError):
            answers(server.url, tokenizer, model="m")
