"""Update rules and learning-rate schedules.

`Optimizer` joins what different parameters need (Muon comes with an AdamW for what is not a hidden matrix) behind one
step; schedules are pure functions of the step, so that a resumed run needs no scheduler state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from whet.errors import RunError
from whet.rl.learner.config import OptimizerConfig
from whet.rl.learner.muon import Muon


def schedule_factor(config: OptimizerConfig, step: int, max_steps: int) -> float:
    """What the peak learning rate is multiplied by in the update after `step` updates.

    Rises linearly over `warmup_steps`, stays at 1 until `decay_start` of `max_steps`, then falls to `min_lr_ratio` at
    `max_steps` (linear, or half a cosine) unless the schedule is constant.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    decay_from = max(config.decay_start * max_steps, config.warmup_steps)
    if config.schedule == "constant" or step < decay_from:
        return 1.0
    left = max(0.0, (max_steps - step) / (max_steps - decay_from)) if max_steps > decay_from else 0.0
    shape = left if config.schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * left)
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * shape


class Optimizer:
    """One update rule over all trained parameters: a torch optimiser per kind of parameter."""

    def __init__(
        self, config: OptimizerConfig, parameters: Iterable[tuple[str, nn.Parameter]], *, hidden: set[str]
    ) -> None:
        """`hidden` names the parameters inside layers: Muon takes the matrices among them, and only those."""
        named = list(parameters)
        self.parameters = [parameter for _, parameter in named]
        self._config = config
        muon = [p for name, p in named if config.type == "muon" and name in hidden and p.ndim == 2]
        rest = [p for p in self.parameters if all(p is not other for other in muon)]
        self._parts: dict[str, torch.optim.Optimizer] = {}
        if muon:
            self._parts["muon"] = Muon(muon, lr=0.0, momentum=config.momentum, weight_decay=config.weight_decay)
        # Decay is for matrices; norms and biases are left where they are.
        groups: list[dict[str, Any]] = [
            {"params": [p for p in rest if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        if groups and config.type == "sgd":
            self._parts["sgd"] = torch.optim.SGD(groups, lr=0.0, momentum=config.momentum)
        elif groups:
            self._parts["adamw"] = torch.optim.AdamW(groups, lr=0.0, betas=config.betas, fused=True)

    def step(self, learning_rate: float, factor: float) -> None:
        """Apply the gradients with `learning_rate * factor` (for Muon's matrices `muon_learning_rate`, if set)."""
        for name, part in self._parts.items():
            peak = self._config.muon_learning_rate if name == "muon" else None
            for group in part.param_groups:
                group["lr"] = (learning_rate if peak is None else peak) * factor
            part.step()

    def clear_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def scale_gradients(self, divisor: float, max_norm: float | None) -> float:
        """Divide, clip to `max_norm`, and return the global norm between the two."""
        gradients: list[Tensor] = [p.grad for p in self.parameters if p.grad is not None]
        if not gradients:
            return 0.0
        norms = torch.stack(torch._foreach_norm(gradients))
        norm = float(norms.norm()) / divisor
        scale = 1 / divisor
        if max_norm is not None and norm > max_norm:
            scale *= max_norm / norm
        torch._foreach_mul_(gradients, scale)
        return norm

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.keys() != self._parts.keys():
            raise RunError(
                f"the checkpoint's optimiser is {'+'.join(state)}, this run's is {'+'.join(self._parts)}. "
                "Set [optimizer] type to what the run began with, or start a new run from the exported weights."
            )
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
