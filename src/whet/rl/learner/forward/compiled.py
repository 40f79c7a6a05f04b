"""Parts of a layer and of the loss as `torch.compile` makes them (`[learner] compile`): one pass over memory for
several operations, forward and backward. They compute what `kernels.py` and `logprobs.py` compute otherwise, to
rounding.

Whole layers are not compiled: torch 2.13 fails on differentiable functions that are written by hand, and attention over
a layout has other blocks in each micro-batch. Lengths are symbols, so that micro-batches share what was compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from whet.errors import ConfigError
from whet.inference.decoding.functions import ACTIVATIONS


@cache
def _made(function: Callable[..., Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(function, dynamic=True)
    return made


def check_compiler(device: torch.device) -> None:
    """Raise `ConfigError` where torch compiles nothing for this device, as without a C++ compiler for a CPU."""
    try:
        _made(_doubled)(torch.ones(8, device=device))
    except Exception as error:  # of any of torch's compilers
        lines = [line for line in str(error).splitlines() if line.strip() and not line.endswith("raised:")]
        reason = lines[0] if lines else type(error).__name__
        raise ConfigError(
            f"[learner] compile = true: torch cannot compile for {device.type} here ({reason}). Set it to false."
        ) from None


def _doubled(x: Tensor) -> Tensor:
    return x * 2


def rms_norm(x: Tensor, weight_D: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """See `kernels.rms_norm`."""
    normed: Tensor = _made(_rms_norm)(x, weight_D, eps, dtype)
    return normed


def _rms_norm(x: Tensor, weight_D: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    x = x.float()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight_D).to(dtype)


def rotate(
    x_THD: Tensor, cos_T1F: Tensor, sin_T1F: Tensor, dtype: torch.dtype, *, rest: float = 1.0, interleaved: bool
) -> Tensor:
    """See `kernels.rotate`."""
    turned: Tensor = _made(_rotate)(x_THD, cos_T1F, sin_T1F, dtype, rest, interleaved)
    return turned


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype, rest: float, interleaved: bool) -> Tensor:
    pairs = cos.shape[-1]
    turning, others = x[..., : 2 * pairs].float(), x[..., 2 * pairs :].float() * rest
    if interleaved:
        first, second = turning[..., 0::2], turning[..., 1::2]
    else:
        first, second = turning[..., :pairs], turning[..., pairs:]
    turned = first * cos - second * sin, second * cos + first * sin
    joined = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat([joined, others], -1).to(dtype)


def gated(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """activation(gate) * up."""
    product: Tensor = _made(_gated)(gate, up, activation)
    return product


def _gated(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    return ACTIVATIONS[activation](gate) * up


def totals_and_entropies(logits_UV: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row the logarithm of the sum of exponentials, and the entropy of its softmax in nats."""
    both: tuple[Tensor, Tensor] = _made(_totals_and_entropies)(logits_UV)
    return both


def _totals_and_entropies(logits_UV: Tensor) -> tuple[Tensor, Tensor]:
    largest = logits_UV.amax(-1, keepdim=True)
    lower = logits_UV - largest
    weights = lower.exp()
    total = weights.sum(-1)
    return largest.squeeze(-1) + total.log(), total.log() - (weights * lower).sum(-1) / total


def slopes(
    logits_UV: Tensor, totals_U: Tensor, entropies_U: Tensor, grad_logprobs_U: Tensor, grad_entropies_U: Tensor
) -> Tensor:
    """The gradient of logits, but for that of the target's logprob at the target itself."""
    grad: Tensor = _made(_slopes)(logits_UV, totals_U, entropies_U, grad_logprobs_U, grad_entropies_U)
    return grad


def _slopes(
    logits_UV: Tensor, totals_U: Tensor, entropies_U: Tensor, grad_logprobs_U: Tensor, grad_entropies_U: Tensor
) -> Tensor:
    logs = logits_UV - totals_U[:, None]
    return -logs.exp() * (grad_logprobs_U[:, None] + grad_entropies_U[:, None] * (logs + entropies_U[:, None]))
