"""Hand-written backward passes agree with autograd."""

import pytest
import torch
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

from whet.rl.learner.forward.kernels import attend, gather, read, rms_norm, rotate, take


def same(found, expected, inputs):
    torch.manual_seed(1)
    weights = torch.randn_like(expected)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    for f, e in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(f, e, atol=1e-5, rtol=1e-5)


def test_rms_norm():
    torch.manual_seed(0)
    x, weight = torch.randn(6, 3, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    same(rms_norm(x, weight, 1e-3), x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3) * weight, (x, weight))


def test_rotate_turns_as_transformers_does():
    torch.manual_seed(0)
    x = torch.randn(6, 3, 8, requires_grad=True)
    angle = torch.randn(6, 4)
    full = torch.cat([angle, angle], -1)[None]
    expected, _ = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], full.cos(), full.sin())
    same(rotate(x, angle.cos()[:, None], angle.sin()[:, None]), expected[0].transpose(0, 1), (x,))


def test_padding_there_and_back_changes_nothing_and_drops_the_gradient_of_padding():
    slots, where, padding = torch.tensor([0, 1, 2, 3, 0, 0]), torch.tensor([0, 1, 2, 3]), torch.tensor([4, 5])
    x = torch.randn(4, 2, requires_grad=True)
    padded = gather(x, slots, where)
    padded.retain_grad()
    back = gather(padded * 2, where, slots, padding)
    torch.testing.assert_close(back, 2 * x)
    back.sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 2))
    assert padded.grad[padding].abs().max() == 0


@pytest.mark.parametrize("biases", [1, 3], ids=["one bias for all", "a bias for each row"])
def test_attention(biases):
    torch.manual_seed(0)
    rows, heads, length, keys = 3, 2, 4, 5
    q, k, v = (torch.randn(rows * heads, n, 8, requires_grad=True) for n in (2 * length, keys, keys))
    bias = torch.zeros(biases, length, keys).masked_fill(torch.rand(biases, length, keys) < 0.3, -1e9)
    per_head = bias.expand(rows, -1, -1).repeat_interleave(heads, 0).repeat(1, 2, 1)
    expected = torch.softmax(q @ k.transpose(1, 2) + per_head, -1) @ v
    same(attend(q, k, v, bias), expected, (q, k, v))


def test_rows_taken_once_each():
    torch.manual_seed(0)
    x, rows = torch.randn(6, 3, requires_grad=True), torch.tensor([4, 0, 3])
    same(take(x, rows), x[rows], (x,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_several_read_add_up_their_gradients_and_those_nobody_reads_get_none(dtype):
    torch.manual_seed(0)
    x = torch.randn(4, 3, dtype=dtype, requires_grad=True)
    index, padding = torch.tensor([0, 3, 3, 0, 1, 0]), 5
    # the readers of 0, of 1, of 2 (none) and of 3; the last place is padding
    found = read(x, index, torch.tensor([0, 3, 4, 1, 2]), torch.tensor([0, 2, 3, 3]))
    weights = torch.randint(-3, 4, (6, 3)).to(dtype)
    assert torch.equal(found, x[index])
    (gradient,) = torch.autograd.grad((found * weights).sum(), x)
    weights[padding] = 0
    assert torch.equal(gradient, torch.autograd.grad((x[index] * weights).sum(), x)[0])
