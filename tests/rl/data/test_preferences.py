"""Direct preference optimisation on the fresh groups of a run: against the formula, and in a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from whet.inference.model_names import resolve_model
from whet.rl.config import RunConfig
from whet.rl.data.assembly import RewardShaper, assemble
from whet.rl.data.curriculum import DrawnTask
from whet.rl.data.metrics import without_clock
from whet.rl.data.preferences import with_preferences
from whet.rl.learner.config import LearnerConfig, OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rl.loop.group import Group
from whet.rl.run import run_training
from whet.types import State

BETA = 0.3


def run_config(tmp_path: Path, **keys: Any) -> RunConfig:
    given: dict[str, Any] = {
        "name": "r", "env": [{"id": "reverse-text"}], "algorithm": {"loss": "dpo", "dpo_beta": BETA},
        "runs_directory": tmp_path, "max_steps": 3, "batch_size": 16, "rollouts_per_example": 8, "learning_rate": 1e-3,
        "sampling": {"max_tokens": 8}, "eval": {"before": False, "after": False}, "deployment": {"threads": 1},
    }  # fmt: skip
    return RunConfig.model_validate({**given, **keys})


def turn(prompt: list[int], ids: list[int]) -> dict[str, Any]:
    return {
        "tokens": {
            "prompt_ids": prompt,
            "completion_ids": ids,
            "completion_mask": [1] * len(ids),
            "completion_logprobs": [-1.5] * len(ids),
            "policy_version": [[0, len(ids)]],
        }
    }


def rollout(reward: float, *turns: dict[str, Any]) -> State:
    return State(example_id=0, reward=reward, is_truncated=False, trajectory=list(turns))


def groups() -> list[Group]:
    """The best of the first is of two branches; equal rewards in the second; a rollout without a token in the third."""
    states = [
        [rollout(0.5, turn([5, 6], [7, 8])), rollout(0.0, turn([5, 6], [9])),
         rollout(1.0, turn([5, 6], [7, 8, 9]), turn([5, 4], [3, 2]))],
        [rollout(1.0, turn([5], [11, 12])), rollout(1.0, turn([5], [13]))],
        [rollout(2.0), rollout(0.2, turn([4], [13, 14])), rollout(0.1, turn([4], [15, 16, 17]))],
    ]  # fmt: skip
    return [Group(number, DrawnTask(number, number, 0, 0), "e", group) for number, group in enumerate(states)]


PAIRS = (([([5, 6], [7, 8, 9]), ([5, 4], [3, 2])], [([5, 6], [9])]), ([([4], [13, 14])], [([4], [15, 16, 17])]))
"""The better and the worse answer of each pair, as prompts and what follows them."""


def test_loss_and_gradient_are_those_of_the_formula(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    algorithm = run_config(tmp_path).algorithm
    learner = make_learner(
        resolve_model("whet/tiny"), optimizer=OptimizerConfig(), lora=None, max_steps=9, seed=0, reference="initial",
        computation=LearnerConfig(device="cpu", dtype="float32"), publish_directory=tmp_path,
    )  # fmt: skip
    with torch.no_grad():  # away from the reference
        for number, (_, p) in enumerate(learner.weights.parameters()):
            p.add_(0.2 * p.std() * torch.randn(p.shape, generator=torch.Generator().manual_seed(number)))
    learner.export(tmp_path / "policy")
    part = assemble(groups(), algorithm, RewardShaper(algorithm), temperature=1.0)
    ratio_T = learner.token_logprobs(part.batch).astype(np.float64) - learner.reference_logprobs(part.batch)
    part, loss = with_preferences(part, ratio_T, algorithm.dpo_beta)
    assert part.divisors == [1, 0, 1]
    assert [[float(np.sign(weight)) for weight in weights] for weights in part.advantages] == [
        [0, -1, 1], [0, 0], [0, 1, -1]
    ]  # fmt: skip
    learner.forward_backward(part.batch, algorithm)

    policy, reference = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64).eval()
        for path in (tmp_path / "policy", resolve_model("whet/tiny"))
    )

    def said(model: Any, branches: list[tuple[list[int], list[int]]]) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for prompt, ids in branches:
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            total = total + logits[torch.arange(len(ids)), torch.tensor(ids)].sum()
        return total

    margins = torch.stack([
        BETA * ((said(policy, c) - said(reference, c).detach()) - (said(policy, r) - said(reference, r).detach()))
        for c, r in PAIRS
    ])  # fmt: skip
    expected = -torch.nn.functional.logsigmoid(margins).mean()
    expected.backward()
    assert float(margins.detach().abs().min()) > 0.05
    assert loss / part.divisor == pytest.approx(float(expected.detach()), rel=1e-5)
    assert part.shaping["preference/margin"] == pytest.approx(float(margins.detach().mean()), rel=1e-4)
    theirs = {name: p.grad for name, p in policy.named_parameters()}
    scale = max(float(gradient.abs().max()) for gradient in theirs.values() if gradient is not None)
    for name, p in learner.weights.parameters():  # the learner computes in single precision
        torch.testing.assert_close(p.grad.double() / part.divisor, theirs[name], atol=5e-6 * scale, rtol=0)


def test_a_batch_without_a_pair_teaches_nothing(tmp_path: Path) -> None:
    algorithm = run_config(tmp_path).algorithm
    part = assemble(groups()[1:2], algorithm, RewardShaper(algorithm), temperature=1.0)
    part, loss = with_preferences(part, np.ones(len(part.batch.ids)), BETA)
    assert (loss, part.divisor, part.shaping) == (0.0, 1.0, {})
    assert not part.batch.advantages.any()


def test_a_run_prefers_the_better_rollouts_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    config = run_config(tmp_path, checkpointing={"save_every_n_steps": 1})
    assert run_training(config, json_output=True).state == "finished"
    expected = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert expected[0]["optim/loss"] == pytest.approx(np.log(2), abs=1e-6)
    assert expected[0]["preference/margin"] == pytest.approx(0, abs=1e-6)
    assert all(line["optim/grad_norm"] > 0 for line in expected)
    for step in (2, 3):
        shutil.rmtree(tmp_path / "r" / "checkpoints" / f"step_{step}")
    assert run_training(config, resume=True, json_output=True).state == "finished"
    resumed = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert list(map(without_clock, resumed)) == list(map(without_clock, expected))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"rollouts_per_example": 1}, "compares rollouts of a group"),
        ({"algorithm": {"loss": "dpo", "epochs": 2}}, "algorithm.epochs is not for"),
        ({"algorithm": {"loss": "dpo", "kl_coef": 0.1}}, "algorithm.kl_coef is not for"),
        ({"algorithm": {"loss": "dpo", "advantage": "gae"}}, "algorithm.critic is not for"),
        ({"algorithm": {"dpo_beta": 0.2}}, "dpo_beta would have no effect"),
        ({"env": [{"id": "reverse-text", "algorithm": "opsd"}]}, "is divided by its pairs"),
    ],
)
def test_what_does_not_go_with_pairs_is_refused(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        run_config(tmp_path, **keys)
