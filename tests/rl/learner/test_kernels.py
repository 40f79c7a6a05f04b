"""Hand-written backward passes agree with autograd."""

import torch
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

from whet.rl.learner.kernels import pad, rms_norm, rotate, unpad


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
    padded = pad(x, slots, where)
    padded.retain_grad()
    back = unpad(padded * 2, slots, where, padding)
    torch.testing.assert_close(back, 2 * x)
    back.sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 2))
    assert padded.grad[padding].abs().max() == 0
