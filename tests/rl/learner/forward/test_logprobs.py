"""Logprobs and entropies agree with log_softmax, in value and gradient, however they are chunked."""

import pytest
import torch

from whet.rl.learner.forward import logprobs
from whet.rl.learner.forward.logprobs import token_logprobs

N, U, D, V = 13, 8, 5, 11


@pytest.fixture
def case():
    torch.manual_seed(0)
    hidden = torch.randn(U, D, requires_grad=True)
    weight = torch.randn(V, D, requires_grad=True)
    state_of_target = torch.cat([torch.arange(U), torch.randint(U, (N - U,))]).sort().values
    targets = torch.randint(V, (N,))
    targets[1] = targets[0]
    return hidden, weight, targets, state_of_target, torch.rand(U) + 0.5


def reference(hidden, weight, targets, state_of_target, temperatures):
    logp = torch.log_softmax(hidden @ weight.T / temperatures[:, None], -1)[state_of_target]
    return logp.gather(-1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("states_at_once", [1, 3, 100])
def test_values_and_gradients_are_those_of_log_softmax(case, monkeypatch, states_at_once):
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", states_at_once * V)
    hidden, weight, *others = case
    weights_lp, weights_h = torch.randn(N), torch.randn(N)
    gradients = []
    for function in (reference, token_logprobs):
        lp, entropy = function(hidden, weight, *others)
        gradients.append(
            (lp, entropy, *torch.autograd.grad((weights_lp * lp + weights_h * entropy).sum(), (hidden, weight)))
        )
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_an_entropy_that_nobody_uses_costs_no_gradient(case):
    hidden, weight, *_ = case
    expected = torch.autograd.grad(reference(*case)[0].sum(), (hidden, weight))
    found = torch.autograd.grad(token_logprobs(*case)[0].sum(), (hidden, weight))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_frozen_output_matrix_gets_no_gradient(case):
    hidden, weight, *others = case
    weight.requires_grad_(False)
    token_logprobs(hidden, weight, *others)[0].sum().backward()
    assert weight.grad is None
    assert hidden.grad is not None
