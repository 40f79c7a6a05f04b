"""The losses by the names that the SDK sends: each a sum over the tokens of a sequence, nothing is divided.

With p the logprobs of the targets now, q those with which they were sampled, A the advantages, r = exp(p - q):

    cross_entropy        -sum w * p            targets, and so w and p, may be [N, K]
    importance_sampling  -sum r * A
    ppo                  -sum min(r * A, clip(r, low, high) * A)       low 0.8, high 1.2
    cispo                -sum stop_gradient(clip(r, low, high)) * A * p    low 0, high 4
    dro                  -sum p * A - beta / 2 * (p - q)**2            beta 0.05

Sources: PPO arXiv:1707.06347, CISPO arXiv:2506.13585, DRO arXiv:2405.19107. A custom loss of the SDK is two requests:
a forward pass, and a cross_entropy whose weights are the negative gradient that the client computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from whet.hub.errors import HubError
from whet.rl.algorithms.ppo import LARGEST_LOG_RATIO

if TYPE_CHECKING:
    from torch import Tensor

    from whet.rl.learner.adapters.work import DatumLoss

Inputs = Mapping[str, "Tensor"]
Terms = tuple["Tensor", dict[str, "Tensor"]]
CLIPPING = ("clip_low_threshold", "clip_high_threshold")


def _cross_entropy(logprobs: Tensor, inputs: Inputs) -> Terms:
    weighted = inputs["weights"] * logprobs if "weights" in inputs else logprobs
    return -weighted.sum(), {}


def _importance_sampling(logprobs: Tensor, inputs: Inputs) -> Terms:
    advantages = inputs["advantages"]
    # A token without advantage has no loss, whatever its ratio: 0 * inf is not 0.
    ratio = (logprobs - inputs["logprobs"]).masked_fill(advantages == 0, 0.0).exp()
    return -(ratio * advantages).sum(), {}


def _ppo(logprobs: Tensor, inputs: Inputs, clip_low_threshold: float, clip_high_threshold: float) -> Terms:
    advantages, log_ratio = inputs["advantages"], logprobs - inputs["logprobs"]
    # What the upper bound silences has gradient 0, also where its ratio would overflow.
    ratio = log_ratio.where(advantages < 0, log_ratio.clamp(max=LARGEST_LOG_RATIO)).exp()
    clipped = ratio.clamp(clip_low_threshold, clip_high_threshold)
    return -(ratio * advantages).minimum(clipped * advantages).sum(), _clipped(ratio, clipped)


def _cispo(logprobs: Tensor, inputs: Inputs, clip_low_threshold: float, clip_high_threshold: float) -> Terms:
    ratio = (logprobs.detach() - inputs["logprobs"]).exp()
    clipped = ratio.clamp(clip_low_threshold, clip_high_threshold)
    return -(clipped * inputs["advantages"] * logprobs).sum(), _clipped(ratio, clipped)


def _dro(logprobs: Tensor, inputs: Inputs, beta: float) -> Terms:
    squares = (logprobs - inputs["logprobs"]) ** 2
    return -(logprobs * inputs["advantages"] - beta / 2 * squares).sum(), {}


def _clipped(ratio: Tensor, clipped: Tensor) -> dict[str, Tensor]:
    return {"clipped_tokens": (ratio != clipped).detach().sum()}


@dataclass(frozen=True, slots=True)
class NamedLoss:
    """One loss: what it needs of each sequence beside `target_tokens`, and its settings with their defaults."""

    compute: Callable[..., Terms]
    needs: tuple[str, ...] = ("logprobs", "advantages")
    may: tuple[str, ...] = ()
    settings: Mapping[str, float] = field(default_factory=dict)


LOSSES: Mapping[str, NamedLoss] = MappingProxyType(
    {
        "cross_entropy": NamedLoss(_cross_entropy, needs=(), may=("weights",)),
        "importance_sampling": NamedLoss(_importance_sampling),
        "ppo": NamedLoss(_ppo, settings=dict(zip(CLIPPING, (0.8, 1.2), strict=True))),
        "cispo": NamedLoss(_cispo, settings=dict(zip(CLIPPING, (0.0, 4.0), strict=True))),
        "dro": NamedLoss(_dro, settings={"beta": 0.05}),
    }
)


def loss_named(name: str) -> NamedLoss:
    """Raises `HubError` for a name that is none of a loss here."""
    if name not in LOSSES:
        raise HubError("invalid", f"loss_fn: there is no loss '{name[:60]}' here. There are {', '.join(LOSSES)}.")
    return LOSSES[name]


def loss_of(name: str, config: Mapping[str, float | str]) -> DatumLoss:
    """The loss with its settings. Raises `HubError` for an unknown name or setting, and for a value that is none."""
    named = loss_named(name)
    for key, value in config.items():
        if key not in named.settings:
            known = f"It has {', '.join(named.settings)}." if named.settings else "It has none."
            raise HubError("invalid", f"loss_fn_config: {name} has no setting '{key[:60]}'. {known}")
        if isinstance(value, str) or not math.isfinite(value):
            raise HubError("invalid", f"loss_fn_config: {key} of {name} has to be a number.")
    settings = {**named.settings, **{key: float(value) for key, value in config.items()}}
    low, high = (settings.get(key, 0.0) for key in CLIPPING)
    if low > high:
        raise HubError("invalid", "loss_fn_config: clip_low_threshold is above clip_high_threshold.")
    return lambda logprobs, inputs: named.compute(logprobs, inputs, **settings)
