"""The policy that a KL term holds the learner to: lent for one forward pass, never trained; and that KL.

    all weights   a frozen copy of the weights the learner began with: 4 more bytes a parameter, 2 in bfloat16
    LoRA          the base with the adapter switched off: no memory at all
    a model       another checkpoint of the same vocabulary, frozen: as much for each of its parameters
    an adapter    its base, frozen, with it: that of an adapter that is trained is the same memory

Each costs one more forward pass a step. `reset_reference` makes the first two the policy of now, again and again: with
LoRA a copy of the adapter, which takes its place while it is lent. Source: ProRL, Liu et al. 2025 (arXiv:2505.24864).
With `reference_decay` d they follow the policy, from the one that the run began with: after each batch a parameter is d
times what it was and 1 - d times the policy's (an exponential moving average, as self-distillation has for its teacher:
Hübotter et al. 2026, arXiv:2601.20802).

The KL is estimated per token. With p the learner's probability of the token
that was taken and f that of the reference, x = log f - log p:

    k1   log p - log f           unbiased as a value, and negative for many tokens
    k2   x^2 / 2                 biased; its gradient, (log p - log f) grad log p, is that of the KL on policy
    k3   exp(x) - 1 - x          unbiased as a value, never negative, little variance

Differentiated directly, k1 would have a gradient of mean zero on policy. It is therefore applied as a penalty on the
token's reward would be, by the score function: the value is k1, the gradient (log p - log f) grad log p.
Sources: Schulman 2020, Approximating KL Divergence (the three estimators); Shao et al. 2024 (arXiv:2402.03300; k3 in
GRPO's loss).

A KL in the reward (`kl_in`) is not differentiated: with q the probability that the token was sampled with in place of
p, it is taken off the rewards of tokens, and an advantage has that of its token and of all later ones of its sequence:

    A_t - kl_coef * sum over i >= t of KL_i

Sources: Ziegler et al. 2019 (arXiv:1909.08593, equation 2); Hu et al. 2025, REINFORCE++ (arXiv:2501.03262).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from whet.errors import ConfigError
from whet.rl.algorithms import LossInputs
from whet.rl.data.batch import PackedBatch
from whet.rl.learner.forward.forward_pass import Layout
from whet.rl.learner.optim import hold
from whet.rl.learner.weights import Weights
from whet.rl.sections.algorithm import KLEstimator, LossConfig

LEAST_REST = 1e-6
"""Probability that a sum of probabilities in float32 may lack."""
FILE = "reference.safetensors"
"""In a checkpoint, where it has been reset."""


@dataclass(slots=True)
class Reference:
    """The policy of a KL term."""

    lend: Callable[[], AbstractContextManager[PreTrainedModel]]  # the model, for the length of a `with` block
    replays: bool  # it takes the experts that the sampler chose, where the learner does; another model's are others
    shared: bool = False  # its weights are those that are trained: lent only while the learner does not compute
    held: dict[str, Tensor] = field(default_factory=dict)  # since a reset: its parameters, or those of its adapter

    def hold(self, weights: Weights) -> None:
        """From now on it has numbers of its own: with LoRA those of the adapter now, otherwise those it had."""
        if self.held:
            return
        if not self.shared:
            with self.lend() as model:
                self.held = dict(model.named_parameters())
            return
        from whet.rl.learner.lora import LoraWeights

        assert isinstance(weights, LoraWeights)
        self.held = {name: parameter.detach().clone() for name, parameter in weights.parameters()}
        self.lend = partial(weights.with_adapter, self.held)

    def move(self, weights: Weights, share: float) -> None:
        """Take so much of what the policy is now, the rest of what it was. It is held."""
        policy: dict[str, Tensor] = dict(weights.parameters() if self.shared else weights.model.named_parameters())
        weights.fill(self.held, policy, share)

    def save(self, directory: Path, weights: Weights) -> None:
        if self.held:
            weights.write(self.held, directory / FILE)

    def load(self, directory: Path, weights: Weights) -> None:
        """Of a learner that is as it was made."""
        if (directory / FILE).is_file():
            self.hold(weights)
            weights.read(self.held, directory / FILE)


def frozen_copy(model: PreTrainedModel, dtype: torch.dtype = torch.float32) -> Reference:
    """The weights as they are now, whatever becomes of `model`; matrices in `dtype`."""
    copied = deepcopy(model)
    hold(copied.parameters(), dtype)
    return frozen(copied, replays=True)


def other_model(
    reference: PreTrainedModel, name: str, *, like: PreTrainedModel, dtype: torch.dtype = torch.float32
) -> Reference:
    """Another model, its matrices in `dtype`. Raises `ConfigError` where its tokens are not those of `like`."""
    theirs, ours = reference.config.vocab_size, like.config.vocab_size
    if theirs != ours:
        raise ConfigError(
            f"reference: {name} has a vocabulary of {theirs} tokens, the model that is trained "
            f"one of {ours}. Probabilities of the same tokens are compared, so both need the same tokenizer."
        )
    hold((parameter for name, parameter in reference.named_parameters() if ".lora_" not in name), dtype)
    return frozen(reference, replays=False)


def frozen(model: PreTrainedModel, *, replays: bool) -> Reference:
    """The model itself, which nothing else changes."""
    model.requires_grad_(False)
    model.eval()
    return Reference(lambda: nullcontext(model), replays)


def kl_to_reference(logprobs_N: Tensor, reference_logprobs_N: Tensor, estimator: KLEstimator) -> Tensor:
    """An estimate of KL(learner || reference) for each of N tokens."""
    if estimator == "k1":
        gap_N = (logprobs_N - reference_logprobs_N).detach()
        return gap_N + gap_N * (logprobs_N - logprobs_N.detach())
    x_N = reference_logprobs_N - logprobs_N
    return 0.5 * x_N.square() if estimator == "k2" else x_N.expm1() - x_N


def kl_terms(
    batch: PackedBatch,
    layout: Layout,
    inputs: LossInputs,
    reference_N: Tensor | None,
    loss: LossConfig,
    tensor: Callable[[NDArray[Any]], Tensor],
    likeliest: tuple[Tensor, Tensor] | None = None,
) -> tuple[LossInputs, Callable[[Tensor], Tensor], dict[str, float]]:
    """The KL to the reference: in the advantages, or in what it makes of a loss [N]; and its sums.

    The loss of tokens that are distilled is the KL alone, to the teacher where the batch has its logprobs: without
    advantages a loss over sampled tokens has nothing to say, and its terms that hold the learner to the sampler are no
    part of on-policy distillation (arXiv:2306.13649, equation 3). The KL is `k1`: the others' gradients are not that of
    the KL where the two policies are far apart. `tensor` brings an array to the device. `likeliest`: logprobs [N, K] of
    the learner's likeliest tokens, its own and the reference's.
    """
    logprobs_N = inputs.logprobs_N
    added_N, sums = torch.zeros_like(logprobs_N), dict[str, float]()
    taught_N = torch.zeros_like(logprobs_N, dtype=torch.bool)
    if batch.distilled is not None:
        taught_N = tensor(batch.distilled[batch.sequence_of_token[layout.targets]]).bool()
        teacher_N = reference_N
        if batch.teacher_logprobs is not None:
            teacher_N = tensor(batch.teacher_logprobs[layout.targets])
        assert teacher_N is not None, "the batch has the teacher's logprobs, or the learner a reference"
        kl_N = kl_of_likeliest(*likeliest) if likeliest else kl_to_reference(logprobs_N, teacher_N, "k1")
        added_N = kl_N.masked_fill(~taught_N, 0)
        sums = {"kl_teacher": added_N.detach().sum().item(), "distilled": float(taught_N.sum().item())}
    if loss.kl_coef and reference_N is not None:
        of_N = logprobs_N if loss.kl_in == "loss" else inputs.sampled_logprobs_N
        kl_N = kl_to_reference(of_N, reference_N, loss.kl_estimator).masked_fill(taught_N, 0)
        sums["kl_reference"] = kl_N.detach().sum().item()
        if loss.kl_in == "loss":
            added_N = added_N + loss.kl_coef * kl_N
        else:
            to_come_N = sums_to_come(kl_N, layout.targets, batch.sequence_of_token[layout.targets])
            inputs = replace(inputs, advantages_N=inputs.advantages_N - loss.kl_coef * to_come_N)
    return inputs, lambda loss_N: loss_N.masked_fill(taught_N, 0) + added_N, sums


def kl_of_likeliest(logprobs_NK: Tensor, reference_NK: Tensor) -> Tensor:
    """KL(learner || reference) [N] of distributions over K tokens and the rest, which counts as one more token.

    It is at most the KL over all tokens, and has all of its gradient within the K tokens.
    """
    p_NK = logprobs_NK.exp()
    rest_N, rest_of_reference_N = ((1 - part_NK.sum(1)).clamp(min=LEAST_REST) for part_NK in (p_NK, reference_NK.exp()))
    of_rest_N = rest_N * (rest_N.log() - rest_of_reference_N.log())
    return (p_NK * (logprobs_NK - reference_NK)).sum(1) + of_rest_N


def sums_to_come(values_N: Tensor, targets_N: NDArray[np.int64], sequence_N: NDArray[np.int32]) -> Tensor:
    """For each token, the sum over it and all later ones of its sequence.

    `targets_N`: the tokens' places in the batch, in any order; `sequence_N`: of each, the sequence, all of which is
    there.
    """
    order = np.argsort(targets_N)
    values = values_N.detach().double().cpu().numpy()[order]
    firsts = np.unique(sequence_N[order], return_index=True)[1]
    sums = np.empty_like(values)
    sums[order] = np.concatenate([one[::-1].cumsum()[::-1] for one in np.split(values, firsts[1:])])
    return torch.from_numpy(sums).to(values_N)
