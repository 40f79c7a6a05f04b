"""The critic against plain torch over transformers' own hidden states: values, the clipped loss, its steps."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from whet.errors import RunError
from whet.rl.learner.config import CriticConfig, LoraConfig, OptimizerConfig
from whet.rl.learner.protocol import OptimParams
from whet.rl.sections.algorithm import LossConfig

RATE = 0.05
PPO = LossConfig(loss="ppo")
CLIPPED = LossConfig(loss="ppo", critic=CriticConfig(value_clip=0.1))
FREE = LossConfig(loss="ppo", critic=CriticConfig(value_clip=None))


def with_returns(batch, values_T):
    returns = np.random.default_rng(2).normal(size=len(batch.ids)).astype(np.float32)
    return replace(batch, values=values_T, returns=np.where(batch.trained, returns, 0).astype(np.float32))


def step(learner, batch, loss, **changes):
    output = learner.forward_backward(batch, loss)
    learner.optim_step(OptimParams(0.0, batch.trained_tokens, 1e9, critic_rate=RATE, **changes))
    return output


def hidden_states(model_dir, batch):
    """[N, hidden] of the trained tokens, where they are predicted."""
    model, rows = AutoModelForCausalLM.from_pretrained(model_dir).eval(), []
    for start, stop in pairwise(batch.cu_seqlens):
        ids = torch.from_numpy(batch.ids[start:stop]).long()[None]
        with torch.no_grad():
            states = model(ids, output_hidden_states=True).hidden_states[-1][0]
        rows.append(states[np.flatnonzero(batch.trained[start:stop]) - 1])
    return torch.cat(rows)


@pytest.mark.parametrize("loss", [CLIPPED, FREE], ids=["clipped", "free"])
@pytest.mark.parametrize("weighed", [False, True])
def test_values_and_steps_are_those_of_the_formula(make, model_dir, batch, loss, weighed):
    if weighed:
        batch = replace(batch, weights=np.random.default_rng(3).uniform(0.5, 2, len(batch.ids)).astype(np.float32))
    learner = make(micro_batch_tokens=12)
    hidden, trained = hidden_states(model_dir, batch), batch.trained
    weight, bias = torch.zeros(hidden.shape[1], requires_grad=True), torch.zeros((), requires_grad=True)
    optimizer = torch.optim.AdamW([weight, bias], lr=RATE, weight_decay=0.0)
    for _ in range(2):  # batches
        logprobs_T, values_T = learner.token_values(batch)
        old = (hidden @ weight + bias).detach()
        np.testing.assert_array_equal(logprobs_T, learner.token_logprobs(batch))
        np.testing.assert_allclose(values_T[trained], old, atol=2e-6)
        assert not values_T[~trained].any()
        seen = with_returns(batch, values_T)
        returns = torch.from_numpy(seen.returns[trained])
        weights = torch.ones(len(returns)) if batch.weights is None else torch.from_numpy(batch.weights[trained])
        for _ in range(3):  # optimiser steps on each
            found = step(learner, seen, loss, ends_batch=False)
            values = hidden @ weight + bias
            losses = (values - returns) ** 2
            if loss.critic.value_clip is not None:
                losses = losses.maximum((old + (values - old).clamp(-0.1, 0.1) - returns) ** 2)
            assert found.sums["value_loss"] == pytest.approx(0.5 * losses.sum().item(), rel=1e-5)
            optimizer.zero_grad()
            (0.5 * losses * weights / batch.trained_tokens).sum().backward()
            optimizer.step()
    torch.testing.assert_close(learner._critic._weight.detach(), weight.detach(), rtol=0, atol=2e-6)
    torch.testing.assert_close(learner._critic._bias.detach(), bias.detach(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", [{}, {"lora": LoraConfig(rank=4, alpha=8, dropout=0.5), "reference": "initial"}])
def test_the_policy_learns_nothing_from_it(make, batch, kind):
    loss = LossConfig(loss="ppo", kl_coef=0.1) if kind else PPO
    with_critic, plain = make(micro_batch_tokens=12, **kind), make(micro_batch_tokens=12, **kind)
    seen = with_returns(batch, with_critic.token_values(batch)[1])
    for learner, shown in ((with_critic, seen), (plain, batch)):
        torch.manual_seed(1)
        learner.forward_backward(shown, loss)
    for (_, one), (_, other) in zip(with_critic.weights.parameters(), plain.weights.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_a_saved_critic_goes_on_bit_for_bit(make, batch, tmp_path):
    learner = make(OptimizerConfig(type="sgd"))
    seen = with_returns(batch, learner.token_values(batch)[1])
    step(learner, seen, PPO)
    learner.save(tmp_path)
    again = make(OptimizerConfig(type="sgd"))
    again.load(tmp_path)
    for one in (learner, again):
        step(one, seen, PPO)
    assert np.array_equal(learner.token_values(batch), again.token_values(batch))
    assert learner.token_values(batch)[1].any()
    (tmp_path / "critic.pt").write_bytes(b"torn")
    with pytest.raises(RunError, match="cannot read the saved critic"):
        make(OptimizerConfig(type="sgd")).load(tmp_path)
