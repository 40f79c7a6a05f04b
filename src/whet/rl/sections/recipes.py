"""Algorithms as their papers have them: `[algorithm] recipe`, or `algorithm = "NAME"` for short.

A recipe gives keys of the config other values than their defaults; each can be set beside it. What a recipe says is
written into the run's config with everything else. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Recipe:
    """Keys of `[algorithm]` and `[buffer]`, and where they are from."""

    source: str
    algorithm: Mapping[str, Any]
    buffer: Mapping[str, Any] = field(default_factory=dict)
    overlong_from: float | None = None
    """Share of `sampling.max_tokens` from which length_penalty takes something (all of it at max_tokens)."""


RECIPES: Mapping[str, Recipe] = {
    "grpo": Recipe(
        "DeepSeekMath, arXiv:2402.03300, equation 3; beta from its section 4.2",
        {"advantage": "grpo_std", "loss": "grpo", "aggregation": "sequence_mean", "kl_coef": 0.04},
    ),
    "dr_grpo": Recipe(
        "arXiv:2503.20783, section 3.2",
        {"advantage": "grpo", "loss": "grpo", "aggregation": "constant"},
    ),
    "dapo": Recipe(
        "arXiv:2503.14476, equation 8; section 4.1 has the numbers",
        {
            "advantage": "grpo_std",
            "loss": "ppo",
            "eps_low": 0.2,
            "eps_high": 0.28,
            "aggregation": "group_mean",
            "length_penalty": 1.0,
        },
        buffer={"difficulty_threshold": 1e-6},  # dynamic sampling: groups whose rewards are all equal are replaced
        overlong_from=0.8,  # soft overlong punishment: 4,096 of 20,480 tokens
    ),
    "gspo": Recipe(
        "arXiv:2507.18071, equation 5; bounds from its section 5.1",
        {"advantage": "grpo_std", "loss": "gspo", "aggregation": "sequence_mean"},
    ),
    "cispo": Recipe(
        "MiniMax-M1, arXiv:2506.13585, equation 4",
        {"advantage": "grpo_std", "loss": "cispo", "aggregation": "group_mean"},
    ),
    "rloo": Recipe(
        "arXiv:2402.14740, without the KL in its reward: the sum over a rollout's tokens, the mean over rollouts",
        {"advantage": "rloo", "loss": "importance_sampling", "aggregation": "constant", "aggregation_length": 1},
    ),
    "ppo": Recipe(
        "arXiv:1707.06347, equation 7, with GAE (arXiv:1506.02438); epochs and lambda from arXiv:2403.17031",
        {"advantage": "gae", "loss": "ppo", "aggregation": "token_mean", "epochs": 4},
    ),
    "reinforce_pp": Recipe(
        "REINFORCE++, arXiv:2501.03262, without the KL in its reward",
        {"advantage": "reinforce_pp", "loss": "ppo", "aggregation": "sequence_mean"},
    ),
}

CONSTANTS = ("eps_low", "eps_high")
"""Keys of a recipe that belong to its loss: with another loss they do not hold."""


def with_recipe(section: Mapping[str, Any]) -> dict[str, Any]:
    """`[algorithm]` with what its recipe says; an unknown recipe is left for the field's own check."""
    recipe = RECIPES.get(str(section.get("recipe")))
    if recipe is None:
        return dict(section)
    other_loss = section.get("loss", recipe.algorithm["loss"]) != recipe.algorithm["loss"]
    keys = {key: value for key, value in recipe.algorithm.items() if not (other_loss and key in CONSTANTS)}
    if not section.get("length_penalty", keys.get("length_penalty")):
        keys.pop("length_penalty", None)
    return {**keys, **section}


def with_recipe_of_run(config: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
    """A run's config with what its recipe says, as far as that is about more than `[algorithm]`.

    `max_tokens` is the default of `sampling.max_tokens`.
    """
    given = dict(config)
    if isinstance(name := given.get("algorithm"), str):
        given["algorithm"] = {"recipe": name}
    if not isinstance(section := given.get("algorithm"), Mapping):
        return given
    algorithm = with_recipe(section)
    sampling = given.get("sampling")
    longest = sampling.get("max_tokens", max_tokens) if isinstance(sampling, Mapping) else max_tokens
    if algorithm.get("aggregation") == "constant":
        algorithm.setdefault("aggregation_length", longest)
    if (recipe := RECIPES.get(str(algorithm.get("recipe")))) is not None:
        if recipe.overlong_from is not None and algorithm.get("length_penalty") and isinstance(longest, int):
            algorithm.setdefault("length_penalty_full", longest)
            algorithm.setdefault("length_penalty_start", int(recipe.overlong_from * longest))
        if recipe.buffer and isinstance(buffer := given.get("buffer", {}), Mapping):
            given["buffer"] = {**recipe.buffer, **buffer}
    return {**given, "algorithm": algorithm}
