"""Weights in the loss that follow what they act on: of the KL to the reference (`kl_target`), of the entropy bonus
(`entropy_target`). Pure.

After each step, with KL the mean over its tokens (`policy/kl_ref`) and H their mean entropy (`policy/entropy`):

    error   = min(max(KL / kl_target - 1, -0.2), 0.2)
    kl_coef = kl_coef * (1 + kl_gain * error)

    c            = c + entropy_step where H < entropy_target, max(c - entropy_step, 0) where H is above
    entropy_coef = c where H <= entropy_target, else 0

Sources: Ziegler et al. 2019 (arXiv:1909.08593, section 2.2), where KL is that of a whole answer; He et al. 2025,
Skywork Open Reasoner 1 (arXiv:2505.22312, adaptive entropy control), where H is that of the batch about to be learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from whet.rl.sections.algorithm import AlgorithmConfig

ERROR_LIMIT = 0.2


@dataclass(slots=True)
class AdaptiveWeights:
    """Has the weights of the next step; one without a target is always that of the config."""

    config: AlgorithmConfig
    kl_coef: float = field(init=False)
    entropy_coef: float = field(init=False)
    _entropy_level: float = field(init=False)
    """c: what the bonus weighs while entropy is at most the target."""

    def __post_init__(self) -> None:
        self.kl_coef = self.config.kl_coef
        self.entropy_coef = self._entropy_level = self.config.entropy_coef

    @property
    def algorithm(self) -> AlgorithmConfig:
        """The config with the weights of the next step."""
        update = {name: getattr(self, name) for name in self._adapted}
        return self.config.model_copy(update=update) if update else self.config

    @property
    def _adapted(self) -> tuple[str, ...]:
        targets = {"kl_coef": self.config.kl_target, "entropy_coef": self.config.entropy_target}
        return tuple(name for name, target in targets.items() if target is not None)

    def after_step(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Of the metrics of a step, the weights of the next one; returns those of the step, as metrics."""
        used = {f"policy/{name}": getattr(self, name) for name in self._adapted}
        if (target := self.config.kl_target) is not None:
            error = min(max(metrics.get("policy/kl_ref", 0.0) / target - 1, -ERROR_LIMIT), ERROR_LIMIT)
            self.kl_coef *= 1 + self.config.kl_gain * error
        if (target := self.config.entropy_target) is not None:
            entropy = metrics["policy/entropy"]
            change = self.config.entropy_step * ((entropy < target) - (entropy > target))
            self._entropy_level = max(self._entropy_level + change, 0.0)
            self.entropy_coef = self._entropy_level if entropy <= target else 0.0
        return used

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to hold; empty where no weight adapts."""
        state = {name: getattr(self, name) for name in self._adapted}
        return state if self.config.entropy_target is None else {**state, "entropy_level": self._entropy_level}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in self._adapted:
            setattr(self, name, float(state.get(name, getattr(self, name))))
        if self.config.entropy_target is not None:
            self._entropy_level = float(state.get("entropy_level", self._entropy_level))
