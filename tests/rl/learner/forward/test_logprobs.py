"""Logprobs and entropies agree with log_softmax, in value and gradient, however they are chunked."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from whet.inference.weights.block_matrix import BlockMatrix
from whet.inference.weights.gguf_blocks import FORMATS
from whet.rl.learner.forward import logprobs
from whet.rl.learner.forward.logprobs import Kept, LowRankLogits, token_logprobs

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


def reference(hidden, weight, targets, state_of_target, temperatures, kept=None):
    logits = hidden @ weight.T / temperatures[:, None]
    if kept is not None:
        left = torch.ones(U, V, dtype=torch.bool)
        left[kept.states.unique()] = False
        left[kept.states, kept.tokens] = True
        logits = logits.masked_fill(~left, -1e30)
    logp = torch.log_softmax(logits, -1)[state_of_target]
    return logp.gather(-1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def some_kept(targets, state_of_target):
    """Of every other state: its targets, and three more."""
    pairs = {(state, word) for state in range(0, U, 2) for word in (0, 4, 9)}
    pairs |= {
        (state, word) for state, word in zip(state_of_target.tolist(), targets.tolist(), strict=True) if state % 2 == 0
    }
    states, tokens = torch.tensor(sorted(pairs)).T
    return Kept(states.contiguous(), tokens.contiguous())


def in_blocks(weight):
    """As a base in blocks has it; those of this format are single numbers."""
    return BlockMatrix(weight.detach().view(torch.uint8).T.contiguous(), FORMATS["F32"])


CHUNKS = pytest.mark.parametrize(
    ("states_at_once", "backward_at_once"), [(1, 1), (1, 100), (3, 3), (3, 5), (3, 100), (100, 100)]
)


@pytest.mark.parametrize("cuts", [False, True], ids=["whole", "cut"])
@CHUNKS
def test_values_and_gradients_are_those_of_log_softmax(case, monkeypatch, states_at_once, backward_at_once, cuts):
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", states_at_once * V)
    monkeypatch.setattr(logprobs, "STATES_AT_ONCE", backward_at_once)
    hidden, weight, *others = case
    if cuts:
        others.append(some_kept(*others[:2]))
    weights_lp, weights_h = torch.randn(N), torch.randn(N)
    gradients = []
    for function in (reference, token_logprobs):
        lp, entropy = function(hidden, weight, *others)
        gradients.append(
            (lp, entropy, *torch.autograd.grad((weights_lp * lp + weights_h * entropy).sum(), (hidden, weight)))
        )
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    lp, entropy = token_logprobs(hidden, in_blocks(weight), *others)
    of_blocks = lp, entropy, *torch.autograd.grad((weights_lp * lp + weights_h * entropy).sum(), hidden)
    for expected, found in zip(gradients[0][:3], of_blocks, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


class Products(TorchDispatchMode):
    """Notes the shapes of all matrix products."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.mm.default:
            self.shapes.append([tuple(matrix.shape) for matrix in args])
        return function(*args, **(kwargs or {}))


@CHUNKS
def test_what_an_adapter_adds_to_logits_has_the_gradients_of_a_merged_matrix(
    case, monkeypatch, states_at_once, backward_at_once
):
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", states_at_once * V)
    monkeypatch.setattr(logprobs, "STATES_AT_ONCE", backward_at_once)
    hidden, weight, *others = case
    down, up = torch.randn(2, D, requires_grad=True), torch.randn(V, 2, requires_grad=True)
    slope_N, gradients = torch.randn(N), []
    for lp, entropy in (
        reference(hidden, weight + up @ down, *others),
        token_logprobs(hidden, weight, *others, added=LowRankLogits(hidden @ down.T, up)),
        token_logprobs(hidden, in_blocks(weight), *others, added=LowRankLogits(hidden @ down.T, up)),
    ):
        loss = (slope_N * lp + entropy).sum()
        found = torch.autograd.grad(loss, (hidden, down, up, weight), allow_unused=True)
        gradients.append([lp, entropy, *found])
    assert gradients[2].pop() is None
    for ours in gradients[1:]:
        for found, expected in zip(ours, gradients[0], strict=False):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_each_part_of_the_output_matrix_has_one_product_for_its_gradient(monkeypatch):
    states, vocabulary, chunk = 64, 256, 1 << 10
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", chunk)
    hidden, weight = torch.randn(states, D, requires_grad=True), torch.randn(vocabulary, D, requires_grad=True)
    found, _ = token_logprobs(hidden, weight, torch.arange(states), torch.arange(states), torch.ones(states))
    with Products() as products:
        found.sum().backward()
    assert sum(left[0] for left, right in products.shapes if right == (states, D)) == vocabulary


def test_an_unused_entropy_costs_no_gradient(case):
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
