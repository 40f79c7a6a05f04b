"""`[algorithm]`: which advantage, which loss, and their constants. Torch-free, so that configs load fast."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

AdvantageName = Literal["grpo", "grpo_std", "rloo", "reinforce_pp", "max_rl"]
LossName = Literal[
    "masked_is", "grpo", "ppo", "cispo", "gspo", "dro", "importance_sampling", "cross_entropy"
]


class LossConfig(BaseModel):
    """One loss and its constants."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    loss: LossName = Field("masked_is", description="Loss per token; see docs/training.md for the formulas.")
    eps_low: float = Field(0.2, ge=0, lt=1, description="Ratio clipping below 1 (grpo, ppo, cispo, gspo).")
    eps_high: float = Field(0.2, ge=0, description="Ratio clipping above 1 (grpo, ppo, cispo, gspo).")
    mask_threshold: float = Field(0.2, gt=0, description="Probability difference at which masked_is drops a token.")
    mask_penalty: float = Field(1e-3, ge=0, description="Weight of (log r)^2 in masked_is.")
    dro_beta: float = Field(0.1, ge=0, description="Weight of the quadratic term in dro.")


class AlgorithmConfig(LossConfig):
    """`[algorithm]`: a loss and the advantage it is given."""

    advantage: AdvantageName = Field("grpo", description="How rewards of a group become advantages.")
