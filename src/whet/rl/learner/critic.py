"""The critic of `advantage = "gae"`: a value head on the policy's hidden states, with an optimiser of its own.

    V_t  = w . h_t + b                     h_t: the hidden state from which token t is predicted, not differentiated
    loss = 1/2 max((V - R)^2, (V' - R)^2)  V' = clip(V, V_old - value_clip, V_old + value_clip)

w and b are 0 at first and float32, and every rank holds all of them: gradients are summed over ranks, so that all make
the same step. The policy's weights learn nothing from it. Sources: Schulman et al. 2017 (arXiv:1707.06347), PPO; the
clip of values as in its first implementation (OpenAI baselines, ppo2; Huang et al. 2022, The 37 Implementation Details
of PPO, detail 9).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whet.errors import RunError
from whet.rl.learner.config import CriticConfig
from whet.rl.learner.forward.forward_pass import MicroBatch

FILE = "critic.pt"
"""In a checkpoint: the head and the state of its optimiser."""


def taken(micro: MicroBatch) -> Tensor:
    """The hidden states of its first pass, that without dropout; they are no longer held."""
    assert micro.hidden, "its forward pass is over"
    first_ND = micro.hidden[0]
    micro.hidden.clear()
    return first_ND


class Critic:
    """See above; made by the learner at the first call for values."""

    def __init__(self, width: int, device: torch.device) -> None:
        self._weight = nn.Parameter(torch.zeros(width, device=device))
        self._bias = nn.Parameter(torch.zeros((), device=device))
        self._optimizer = torch.optim.AdamW([self._weight, self._bias], lr=0.0, weight_decay=0.0)

    def values(self, hidden_ND: Tensor) -> Tensor:
        return hidden_ND.float() @ self._weight + self._bias

    def learn(
        self, micro: MicroBatch, tensor: Callable[[NDArray[Any]], Tensor], config: CriticConfig
    ) -> dict[str, float]:
        """Add the gradients of a micro-batch's summed loss; `tensor` puts arrays on the device. Returns sums."""
        batch, targets = micro.batch, micro.layout.targets
        assert batch.values is not None
        assert batch.returns is not None
        old_N, returns_N = tensor(batch.values[targets]), tensor(batch.returns[targets])
        weights_N = 1.0 if batch.weights is None else tensor(batch.weights[targets])
        values_N = self.values(taken(micro))
        loss_N = (values_N - returns_N).square()
        if config.value_clip is not None:
            clipped_N = old_N + (values_N - old_N).clamp(-config.value_clip, config.value_clip)
            loss_N = loss_N.maximum((clipped_N - returns_N).square())
        total = (0.5 * loss_N * weights_N).sum()
        total.backward()
        return {"value_loss": 0.5 * loss_N.detach().sum().item()}

    def step(
        self, rate: float, denominator: float, max_norm: float | None, summed: Callable[[Tensor, str], Tensor]
    ) -> None:
        """Divide, clip, apply and clear; `summed` adds up what ranks have."""
        parts = self._weight, self._bias
        gradient = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parts])
        gradient = summed(gradient, "summing the critic's gradients") / denominator
        if max_norm is not None:
            gradient *= min(1.0, max_norm / max(gradient.norm().item(), 1e-12))
        self._weight.grad, self._bias.grad = gradient[:-1].clone(), gradient[-1].clone()
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad()

    def save(self, directory: Path) -> None:
        state = {"weight": self._weight.detach(), "bias": self._bias.detach()}
        torch.save({**state, "optimizer": self._optimizer.state_dict()}, directory / FILE)

    @classmethod
    def load(cls, directory: Path, device: torch.device) -> Critic | None:
        """None where there was none. Raises `RunError` for what cannot be read."""
        if not (path := directory / FILE).is_file():
            return None
        try:
            state = torch.load(path, map_location=device, weights_only=True)
            critic = cls(len(state["weight"]), device)
            critic._optimizer.load_state_dict(state["optimizer"])
        except (OSError, ValueError, LookupError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise RunError(f"{path}: cannot read the saved critic: {error}") from None
        with torch.no_grad():
            critic._weight.copy_(state["weight"])
            critic._bias.copy_(state["bias"])
        return critic
