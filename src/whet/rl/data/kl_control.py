"""The weight of the KL to the reference, where it follows the KL itself (`kl_target`).

After each step, with KL the mean over its tokens (`policy/kl_ref`):

    error   = min(max(KL / kl_target - 1, -0.2), 0.2)
    kl_coef = kl_coef * (1 + kl_gain * error)

Source: Ziegler et al. 2019 (arXiv:1909.08593, section 2.2), where KL is that of a whole answer. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from whet.rl.sections.algorithm import AlgorithmConfig

ERROR_LIMIT = 0.2


@dataclass(slots=True)
class KLController:
    """Has the weight of the next step; without `kl_target` it is always that of the config."""

    config: AlgorithmConfig
    coef: float = field(init=False)

    def __post_init__(self) -> None:
        self.coef = self.config.kl_coef

    @property
    def algorithm(self) -> AlgorithmConfig:
        """The config with the weight of the next step."""
        return self.config if self.config.kl_target is None else self.config.model_copy(update={"kl_coef": self.coef})

    def after_step(self, kl: float) -> dict[str, float]:
        """Of the KL of a step, the weight of the next one; returns that of the step, as a metric."""
        if self.config.kl_target is None:
            return {}
        used = self.coef
        error = min(max(kl / self.config.kl_target - 1, -ERROR_LIMIT), ERROR_LIMIT)
        self.coef = used * (1 + self.config.kl_gain * error)
        return {"policy/kl_coef": used}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to hold; empty where the weight stands still."""
        return {} if self.config.kl_target is None else {"kl_coef": self.coef}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.config.kl_target is not None and "kl_coef" in state:
            self.coef = float(state["kl_coef"])
