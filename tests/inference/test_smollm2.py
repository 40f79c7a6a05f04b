"""SmolLM2-135M as `whet model get smollm2-135m` brings it: real weights, a real vocabulary, a real chat template."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from whet.errors import ModelLoadError
from whet.inference.loading import load_policy
from whet.inference.model_names import packaged_file, resolve_model
from whet.inference.protocol import Sample, SampleRequest, SamplingParams
from whet.rl.config import RunConfig
from whet.rl.run import run_training
from whet.rollouts.token_rows import read_rollouts

pytestmark = pytest.mark.parts
NAME = "smollm2-135m"
IDS = torch.randint(0, 49_152, (1, 64), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def directory() -> Path:
    try:
        return resolve_model(NAME)
    except ModelLoadError as error:
        pytest.fail(f"{error} `make test-parts` does.")


def test_logits_equal_those_of_transformers_own_reading_of_the_file(directory: Path) -> None:
    file = packaged_file(NAME)
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        assert (ours(IDS).logits - theirs(IDS).logits).abs().max() <= 1e-5


def test_sampled_logprobs_are_those_of_a_plain_forward(directory: Path, reference: Callable[..., torch.Tensor]) -> None:
    policy = load_policy(str(directory), threads=1)
    questions = ["Name three rivers of Europe.", "What is 12 plus 30?", "Sort: pear, apple, fig."]
    requests = [
        SampleRequest(
            policy.renderer.render([{"role": "user", "content": question}]),
            SamplingParams(max_tokens=48, temperature=temperature, seed=number),
        )
        for number, (question, temperature) in enumerate(zip(questions, (1.0, 0.7, 1.0), strict=True))
    ]

    async def sample() -> list[Sample]:
        try:
            return list(await asyncio.gather(*(policy.engine.sample(request) for request in requests)))
        finally:
            await policy.engine.close()

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    for request, drawn in zip(requests, asyncio.run(sample()), strict=True):
        expected = reference(model, request.prompt_ids, drawn.ids, request.params.temperature)
        assert len(drawn.ids) > 1
        assert (expected - torch.tensor(drawn.logprobs)).abs().max() <= 1e-4


def test_a_conversation_continues_token_by_token(directory: Path) -> None:
    """The next prompt begins with the earlier one and with what was sampled, and is what the template writes."""
    renderer = load_policy(str(directory), threads=1).renderer
    asked: list[Any] = [{"role": "user", "content": "Sort: b a"}]
    more: list[Any] = [{"role": "user", "content": "Add: c"}]
    prompt = renderer.render(asked)
    answer = [*renderer.tokenizer.encode("a\nb", add_special_tokens=False), renderer.stop_token_ids[0]]
    conversation = [*asked, {"role": "assistant", "content": "a\nb"}]
    extended = renderer.extend(prompt, answer, conversation, more)
    assert extended == renderer.render([*conversation, *more])


TURNS = {"id": "alphabet-sort", "args": {"min_turns": 3, "max_turns": 3}}
TOOL = {"id": "calculator", "args": {"examples": 3}}


@pytest.mark.parametrize(
    ("env", "turns", "rollouts"),
    [pytest.param(TURNS, 3, 8, marks=pytest.mark.long), (TOOL, 2, 4)],
    ids=["turns", "tool"],
)
def test_training_and_sampling_are_one_policy(env: dict[str, Any], turns: int, rollouts: int, tmp_path: Path) -> None:
    """Before an update and after it, whatever a rollout's turns are made of."""
    config = RunConfig.model_validate(
        {
            "name": "r",
            "model": NAME,
            "max_steps": 2,
            "batch_size": rollouts,
            "rollouts_per_example": 4,
            "learning_rate": 2e-5,
            "runs_directory": tmp_path,
            "sampling": {"max_tokens": 40, "temperature": 0.8},
            "env": [env],
            "eval": {"before": False, "after": False},
            "deployment": {"threads": 1},
        }
    )
    assert run_training(config, json_output=True).state == "finished"
    metrics = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert all(abs(line["policy/kl"]) < 1e-6 for line in metrics)
    assert metrics[0]["optim/grad_norm"] > 0
    for step in (1, 2):
        rows = list(read_rollouts(tmp_path / "r" / "rollouts" / f"step_{step:06}.jsonl"))
        assert max(len(row["turns"]) for row in rows) >= turns
        assert env is not TOOL or any(message["role"] == "tool" for row in rows for message in row["completion"])
        for turn in (turn for row in rows for turn in row["turns"]):
            sampled, learned = (torch.tensor(turn[f"{which}_logprobs"]) for which in ("completion", "learner"))
            assert (sampled - learned).abs().max() <= 1e-4
    AutoModelForCausalLM.from_pretrained(tmp_path / "r" / "model")
