"""Keys of `[algorithm]` that belong to another of its keys: without that they would have no effect, and are refused."""

from __future__ import annotations

CONSTANTS = (
    *("eps_low", "eps_high", "mask_threshold", "mask_penalty", "dro_beta", "dpo_beta"),
    *("cov_share", "cov_low", "cov_high", "cov_kl"),
)
"""Keys that only the losses use whose `loss_constants` name them; with another loss they are refused."""

RETURNS = ("discount", "returns_baseline", "returns_scale", "returns_outcome")
"""Keys that only the advantages use whose `advantage_keys` name them."""

PART_OF: dict[str, str] = {
    "kl_estimator": "kl_coef",
    "kl_in": "kl_coef",
    "kl_target": "kl_coef",
    "kl_gain": "kl_target",
    "entropy_step": "entropy_target",
    "reset_optimizer": "reset_reference",
    "mis_level": "mis_limit",
    "tis_level": "tis_limit",
    "length_penalty_start": "length_penalty",
    "length_penalty_full": "length_penalty",
    "repetition_ngram": "repetition_penalty",
}
"""Settings of something that a weight of 0, or no limit, switches off; they would have no effect then: refused."""
