"""Each recipe's loss and gradient against its paper's formula, written out one rollout at a time; what it sets."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from whet.rl.algorithms import LossInputs, loss_fn
from whet.rl.config import RunConfig
from whet.rl.data.assembly import RewardShaper, assemble
from whet.rl.data.curriculum import DrawnTask
from whet.rl.data.values import with_values
from whet.rl.learner.reference import kl_to_reference
from whet.rl.loop.group import Group
from whet.rl.sections.recipes import RECIPES
from whet.types import State

REWARDS = [[1.0, 0.0, 0.25, 1.0], [0.0, 0.5, 0.0, 0.0]]
LENGTHS = [[3, 1, 7, 2], [5, 5, 1, 4]]
MAX_TOKENS = 8
Rollouts = list[list[Tensor]]
Objective = Callable[[Rollouts, Rollouts, Rollouts], Tensor]


def run_config(**algorithm: object) -> RunConfig:
    sampling = {"max_tokens": MAX_TOKENS}
    return RunConfig(name="r", env=[{"id": "reverse-text"}], sampling=sampling, algorithm=algorithm)  # type: ignore[arg-type]


def of_group(rewards: list[float]) -> list[float]:
    """Less the mean, over the sample deviation."""
    spread = np.std(rewards, ddof=1) + 1e-4
    return [(reward - np.mean(rewards)) / spread for reward in rewards]


def surrogate(ratio: Tensor, advantage: float, low: float, high: float) -> Tensor:
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def each(p: Rollouts, q: Rollouts) -> list[list[Tensor]]:
    return [[(a - b).exp() for a, b in zip(ps, qs, strict=True)] for ps, qs in zip(p, q, strict=True)]


def grpo(p: Rollouts, q: Rollouts, reference: Rollouts) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for group, rewards in enumerate(REWARDS):
        for i, advantage in enumerate(of_group(rewards)):
            ratio = (p[group][i] - q[group][i]).exp()
            away = reference[group][i] - p[group][i]
            terms = surrogate(ratio, advantage, 0.2, 0.2) - 0.04 * (away.exp() - away - 1)
            total = total + terms.mean() / len(rewards)
    return -total / len(REWARDS)


def dr_grpo(p: Rollouts, q: Rollouts, _: Rollouts) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for rewards, ratios in zip(REWARDS, each(p, q), strict=True):
        for reward, ratio in zip(rewards, ratios, strict=True):
            total = total + surrogate(ratio, reward - float(np.mean(rewards)), 0.2, 0.2).sum() / MAX_TOKENS
    return -total / 8


def dapo(p: Rollouts, q: Rollouts, _: Rollouts) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for rewards, lengths, ratios in zip(REWARDS, LENGTHS, each(p, q), strict=True):
        start = int(0.8 * MAX_TOKENS)
        shaped = [r - min(1, max(0, (n - start) / (MAX_TOKENS - start))) for r, n in zip(rewards, lengths, strict=True)]
        terms = [surrogate(ratio, a, 0.2, 0.28).sum() for ratio, a in zip(ratios, of_group(shaped), strict=True)]
        total = total + torch.stack(terms).sum() / sum(lengths)
    return -total / 2


def gspo(p: Rollouts, q: Rollouts, _: Rollouts) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for group, rewards in enumerate(REWARDS):
        for i, advantage in enumerate(of_group(rewards)):
            total = total + surrogate((p[group][i] - q[group][i]).mean().exp(), advantage, 3e-4, 4e-4) / 8
    return -total


def cispo(p: Rollouts, q: Rollouts, _: Rollouts) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for group, (rewards, lengths) in enumerate(zip(REWARDS, LENGTHS, strict=True)):
        for i, advantage in enumerate(of_group(rewards)):
            weight = (p[group][i] - q[group][i]).exp().detach().clamp(max=5)
            total = total + (weight * advantage * p[group][i]).sum() / sum(lengths) / 2
    return -total


def rloo(p: Rollouts, q: Rollouts, _: Rollouts) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for rewards, ratios in zip(REWARDS, each(p, q), strict=True):
        for i, ratio in enumerate(ratios):
            others = [reward for j, reward in enumerate(rewards) if j != i]
            total = total + (rewards[i] - float(np.mean(others))) * ratio.sum() / 8
    return -total


def reinforce_pp(p: Rollouts, q: Rollouts, _: Rollouts) -> Tensor:
    everything, total = np.concatenate(REWARDS), torch.zeros((), dtype=torch.float64)
    for rewards, ratios in zip(REWARDS, each(p, q), strict=True):
        for reward, ratio in zip(rewards, ratios, strict=True):
            advantage = (reward - everything.mean()) / (everything.std() + 1e-4)
            total = total + surrogate(ratio, float(advantage), 0.2, 0.2).mean() / 8
    return -total


def ppo(p: Rollouts, q: Rollouts, _: Rollouts) -> Tensor:
    """With a critic that has learned nothing yet: token t of T has the advantage 0.95^(T - t) r."""
    terms = [
        surrogate((one - other).exp()[t], 0.95 ** (len(one) - 1 - t) * reward, 0.2, 0.2)
        for group, rewards in enumerate(REWARDS)
        for one, other, reward in zip(p[group], q[group], rewards, strict=True)
        for t in range(len(one))
    ]
    return -torch.stack(terms).mean()


OBJECTIVES: dict[str, Objective] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "dapo": dapo,
    "gspo": gspo,
    "cispo": cispo,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "ppo": ppo,
}


def rollout(reward: float, logprobs: Tensor) -> State:
    ids = list(range(3, 3 + len(logprobs)))
    tokens = {
        "prompt_ids": [1, 2],
        "completion_ids": ids,
        "completion_mask": [1] * len(ids),
        "completion_logprobs": logprobs.tolist(),
        "policy_version": [[0, len(ids)]],
    }
    return State(example_id=0, reward=reward, is_truncated=False, trajectory=[{"tokens": tokens}])


def drawn(seed: int, spread: float) -> Rollouts:
    torch.manual_seed(seed)
    return [[spread * torch.randn(n, dtype=torch.float64).float().double() for n in lengths] for lengths in LENGTHS]


@pytest.mark.parametrize("name", RECIPES)
def test_loss_and_gradient_are_those_of_the_paper(name: str) -> None:
    config = run_config(recipe=name).algorithm
    q, reference = drawn(1, 0.5), drawn(2, 0.5)
    steps = drawn(3, 0.2)
    p = [[(q[g][i] + steps[g][i]).requires_grad_() for i in range(len(q[g]))] for g in range(len(q))]
    expected = OBJECTIVES[name](p, q, reference)
    flat = [one for group in p for one in group]
    expected_gradients = torch.cat(torch.autograd.grad(expected, flat))

    groups = [
        Group(n, DrawnTask(n, 0, n, 0), "e", [rollout(r, lp) for r, lp in zip(REWARDS[n], q[n], strict=True)])
        for n in range(2)
    ]
    done = assemble(groups, config, RewardShaper(config), temperature=1.0)
    if config.has_critic:
        done = with_values(done, groups, np.zeros(len(done.batch.ids), np.float32), config)
    trained, batch = done.batch.trained, done.batch
    inputs = LossInputs(
        torch.cat(flat),
        torch.from_numpy(batch.logprobs[trained]).double(),
        torch.from_numpy(batch.advantages[trained]).double(),
        torch.from_numpy(batch.sequence_of_token[trained]).long(),
    )
    loss_N = loss_fn(config.loss)(inputs, config).loss_N
    if config.kl_coef:
        reference_N = torch.cat([one for group in reference for one in group])
        loss_N = loss_N + config.kl_coef * kl_to_reference(inputs.logprobs_N, reference_N, config.kl_estimator)
    weights_N = 1.0 if batch.weights is None else torch.from_numpy(batch.weights[trained])
    found = (loss_N * weights_N).sum() / done.divisor
    gradients = torch.cat(torch.autograd.grad(found, flat))
    assert found.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-6)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-5, atol=1e-6)


def test_a_recipe_is_a_word_and_sets_what_belongs_to_it_elsewhere() -> None:
    config = RunConfig(name="r", env=[{"id": "reverse-text"}], algorithm="dapo")  # type: ignore[arg-type]
    assert (config.algorithm.eps_high, config.algorithm.length_penalty_full) == (0.28, 512)
    assert config.buffer.difficulty_threshold == 1e-6


def test_each_key_of_a_recipe_can_be_set() -> None:
    config = run_config(recipe="dapo", aggregation="token_mean", length_penalty=0.0, eps_high=0.4)
    assert (config.algorithm.aggregation, config.algorithm.length_penalty, config.algorithm.eps_high) == (
        "token_mean",
        0.0,
        0.4,
    )
    assert run_config(recipe="dapo", loss="masked_is").algorithm.loss == "masked_is"


def test_a_run_s_own_config_reads_back_as_it_was() -> None:
    config = run_config(recipe="dr_grpo")
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"recipe": "dpao"}, "Did you mean 'dapo'"),
        ({"aggregation_length": 8}, "aggregation_length belongs to"),
    ],
)
def test_what_has_no_meaning_is_refused(algorithm: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        run_config(**algorithm)


@pytest.mark.parametrize(
    ("aggregation", "weights", "divisor"),
    [
        ("token_mean", [1, 1, 1], 10),
        ("group_mean", [1 / 8, 1 / 8, 1 / 2], 2),
        ("sequence_mean", [1 / 3, 1 / 5, 1 / 2], 3),
        ("constant", [1 / 8, 1 / 8, 1 / 8], 3),
    ],
)
def test_weights_and_divisor_of_each_aggregation(aggregation: str, weights: list[float], divisor: float) -> None:
    config = run_config(aggregation=aggregation).algorithm
    groups = [
        Group(0, DrawnTask(0, 0, 0, 0), "e", [rollout(1.0, torch.zeros(3)), rollout(0.0, torch.zeros(5))]),
        Group(1, DrawnTask(1, 0, 1, 0), "f", [rollout(1.0, torch.zeros(2)), rollout(0.0, torch.zeros(0))]),
    ]
    done = assemble(groups, config, RewardShaper(config), temperature=1.0, loss_weights={"f": 2.0})
    assert done.batch.weights is not None
    firsts = [float(done.batch.weights[done.batch.trained & (done.batch.sequence_of_token == b)][0]) for b in range(3)]
    assert firsts == pytest.approx([weights[0], weights[1], 2 * weights[2]])
    assert done.divisor == divisor
    assert math.isclose(sum(part.divisor for part in (done, done)), 2 * divisor)
