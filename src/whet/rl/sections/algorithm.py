"""`[algorithm]`: which advantage, which loss, and their constants. Torch-free, so that configs load fast."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from whet.config import StrictModel
from whet.rl.algorithms import KEYS, Part, RewardNorm, algorithms, find, names_of
from whet.rl.learner.config import CriticConfig
from whet.rl.sections.belonging import CONSTANTS, PART_OF, RETURNS
from whet.rl.sections.recipes import RECIPES, with_recipe

KLEstimator = Literal["k1", "k2", "k3"]
RatioOf = Literal["token", "sequence", "geometric"]
AggregationName = Literal["token_mean", "group_mean", "sequence_mean", "constant"]

INITIAL = "initial"
"""`reference`: the weights that the run began with."""
CURRENT = "current"
"""`reference`: the weights that learn, as they are before a batch."""


def _constants(loss: str) -> Mapping[str, Any]:
    """Those of a loss by name, with their defaults; nothing is known of a loss by import path."""
    return algorithms()[loss].loss_constants if loss in algorithms() else {}


def _known(value: str, part: Part) -> str:
    """`value`, where it is an algorithm that has this part, or an import path."""
    names, key = names_of(part), KEYS[part]
    if value in names or ":" in value:
        return value
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.6)
    hint = f"Did you mean '{near[0]}'?" if near else f"It is one of {', '.join(names)}."
    raise ValueError(f"there is no {key} '{value}'. {hint} One of your own is 'package.module:name'.")


class LossConfig(StrictModel):
    """One loss and its constants, and what is added to it."""

    loss: str = Field(
        "masked_is",
        description=f"Loss per token: {', '.join(names_of('loss'))}; or an import path, package.module:name.",
    )
    loss_args: dict[str, Any] = Field(default_factory=dict, description="Constants of a loss given by import path.")
    eps_low: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Ratios are clipped this far below 1. Default: 0.2 (grpo, ppo, clip_cov), 3e-4 (gspo), 1 = never "
        "(cispo).",
    )
    eps_high: float | None = Field(
        None,
        ge=0,
        description="Ratios are clipped this far above 1. Default: 0.2 (grpo, ppo, clip_cov), 4e-4 (gspo), 4 (cispo).",
    )
    mask_threshold: float = Field(
        _constants("masked_is")["mask_threshold"],
        gt=0,
        description="Probability difference at which masked_is drops a token.",
    )
    mask_penalty: float = Field(
        _constants("masked_is")["mask_penalty"], ge=0, description="Weight of (log r)^2 in masked_is."
    )
    dpo_beta: float = Field(_constants("dpo")["dpo_beta"], gt=0, description="What dpo holds to the reference by.")
    dro_beta: float = Field(_constants("dro")["dro_beta"], ge=0, description="Weight of the quadratic term in dro.")
    cov_share: float | None = Field(
        None, gt=0, le=1, description="Share of tokens that are chosen. Default: 2e-4 (clip_cov), 2e-3 (kl_cov)."
    )
    cov_low: float = Field(
        _constants("clip_cov")["cov_low"], description="Least covariance of a token that clip_cov may choose."
    )
    cov_high: float = Field(_constants("clip_cov")["cov_high"], description="Largest one.")
    cov_kl: float = Field(
        _constants("kl_cov")["cov_kl"], ge=0, description="Weight of |log r| of the tokens that kl_cov chooses."
    )
    tis_limit: float | None = Field(
        None,
        ge=1,
        description="Truncated importance sampling: a token's ratio of learner to sampler weighs no more than this. Of "
        f"{', '.join(name for name, one in algorithms().items() if one.weighs_by_ratio)}.",
    )
    tis_level: RatioOf = Field(
        "token",
        description="What tis_limit bounds, with old_logprobs = recomputed: the ratio of a token; or of a sequence, as "
        "product or as geometric mean.",
    )
    mis_limit: float | None = Field(
        None,
        gt=1,
        description="Masked importance sampling: tokens with a ratio above this, or below 1 over this, carry no loss.",
    )
    mis_level: RatioOf = Field(
        "token",
        description="What mis_limit bounds: the ratio of a token; or of a sequence, as product or as geometric mean.",
    )
    old_logprobs: Literal["sampler", "recomputed"] = Field(
        "sampler",
        description="What the loss compares the learner with: the sampler, or the learner itself before the batch; "
        "tis_limit and mis_limit then bound the ratio between these two.",
    )
    kl_coef: float = Field(
        0.0, ge=0, description="Weight per token of the KL to the reference; 0 = none, and no reference is held."
    )
    kl_estimator: KLEstimator = Field("k3", description="How that KL is estimated from the tokens that were taken.")
    kl_in: Literal["loss", "reward"] = Field(
        "loss",
        description="Where that KL is: added to a token's loss; or taken off the reward of each token, so that its "
        "advantage has that of all later tokens of its sequence too.",
    )
    distill_top_k: int = Field(
        0,
        ge=0,
        description="Of opd: the KL to the teacher is over this many likeliest tokens of the student, and the rest as "
        "one; 0: it is that of the sampled token.",
    )
    entropy_coef: float = Field(0.0, ge=0, description="Entropy bonus per token: coefficient times nats.")
    critic: CriticConfig = Field(default_factory=CriticConfig, description="Of advantage = gae.")

    @model_validator(mode="before")
    @classmethod
    def _constants_of_the_loss(cls, data: Any) -> Any:
        """Writes the loss's constants out, so that a run's config says which it was trained with."""
        if not isinstance(data, dict):
            return data
        given, constants = dict(data), _constants(str(data.get("loss", "masked_is")))
        for name, default in constants.items():
            if name not in cls.model_fields:
                given["loss_args"] = {name: default, **given.get("loss_args", {})}
            elif cls.model_fields[name].default is None and given.get(name) is None:
                given[name] = default
        return given

    @property
    def ratio_bounds(self) -> tuple[float, float]:
        """The interval that the loss clips ratios to."""
        assert self.eps_low is not None, f"{self.loss} has no bounds"
        assert self.eps_high is not None, f"{self.loss} has no bounds"
        return 1 - self.eps_low, 1 + self.eps_high

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, value: str) -> str:
        return _known(value, "loss")

    @model_validator(mode="after")
    def _everything_has_an_effect(self) -> Self:
        constants = _constants(self.loss)
        for name in CONSTANTS:
            if name not in constants and self.differs(name):
                raise ValueError(f"{name} would have no effect: loss = {self.loss} does not use it")
        if self.loss in algorithms():
            algorithms()[self.loss].check_args("loss", self.loss_args)
            self._check_limits()
        for name, weight in PART_OF.items():
            if name in type(self).model_fields and self.differs(name) and not (value := getattr(self, weight)):
                raise ValueError(f"{name} would have no effect: {weight} is {'not set' if value is None else 0}")
        self._limits_leave_each_other_an_effect()
        return self

    def _check_limits(self) -> None:
        if self.kl_in == "reward" and not algorithms()[self.loss].compares_with_sampler:
            raise ValueError(f'kl_in = "reward" would have no effect: loss = {self.loss} has no sampler')
        if self.old_logprobs == "sampler":
            algorithms()[self.loss].check_limits(self)
        elif not algorithms()[self.loss].compares_with_sampler:
            raise ValueError(f"old_logprobs would have no effect: loss = {self.loss} has no ratio")

    def _limits_leave_each_other_an_effect(self) -> None:
        if self.old_logprobs == "recomputed":
            return
        if self.tis_level != "token":
            raise ValueError(
                f'tis_level = "{self.tis_level}" needs old_logprobs = "recomputed": a loss weighs tokens by their own '
                "ratios"
            )
        if self.tis_limit is None:
            return
        if self.eps_high is not None and self.tis_limit <= 1 + self.eps_high:
            raise ValueError(
                f"eps_high would have no effect: ratios are cut at tis_limit = {self.tis_limit:g}, which should be "
                f"above 1 + eps_high = {1 + self.eps_high:g}"
            )
        if self.mis_limit is not None and self.mis_level == "token" and self.tis_limit >= self.mis_limit:
            raise ValueError(
                f"tis_limit would have no effect: tokens with a ratio above mis_limit = {self.mis_limit:g} carry no "
                f"loss, and tis_limit = {self.tis_limit:g} is not below it"
            )


class AlgorithmConfig(LossConfig):
    """`[algorithm]`: what becomes of rewards, the advantage made of them, and the loss that uses it."""

    recipe: str | None = Field(
        None, description=f"An algorithm as published, which sets other keys where you do not: {', '.join(RECIPES)}."
    )
    advantage: str = Field(
        "grpo",
        description="How rewards of a group become advantages, where the environment does not set them: "
        f"{', '.join(names_of('advantages'))}; or an import path, package.module:name.",
    )
    advantage_args: dict[str, Any] = Field(
        default_factory=dict, description="Constants of an advantage given by import path."
    )
    discount: float = Field(
        1.0,
        ge=0,
        le=1,
        description="What a reward is worth a turn (step_returns) or a token (gae) earlier.",
    )
    returns_baseline: Literal["turn", "group", "none"] = Field(
        "turn",
        description="Of step_returns: what is taken off a return: the mean of the group's at the same turn, at all "
        "turns, or nothing.",
    )
    returns_scale: bool = Field(
        False, description="Of step_returns: divide by the deviation of the returns that the baseline is the mean of."
    )
    returns_outcome: Literal["rest", "whole", "none"] = Field(
        "rest",
        description="Of step_returns and gae: what the last turn earns beyond its step's reward: the rollout's reward "
        "less those of its steps, all of it, or nothing.",
    )
    aggregation: AggregationName = Field(
        "token_mean",
        description="What tokens weigh: all of a batch the same; or 1 over those of their group, of their rollout, or "
        "aggregation_length.",
    )
    aggregation_length: int | None = Field(
        None, ge=1, description="Divisor of each rollout's sum, with constant. Default: sampling.max_tokens."
    )
    minibatches: int = Field(
        1, ge=1, description="Optimiser steps that one pass over a batch takes, each with its share of the groups."
    )
    epochs: int = Field(1, ge=1, description="Passes over each batch.")
    kl_target: float | None = Field(
        None, gt=0, description="KL per token, in nats, that kl_coef follows: it grows above it, and falls below it."
    )
    kl_gain: float = Field(
        0.1, gt=0, le=1, description="How fast: a step changes kl_coef by this times the relative error, at most 0.2."
    )
    entropy_target: float | None = Field(
        None,
        gt=0,
        description="Nats of entropy up to which there is a bonus, whose weight adapts from entropy_coef on.",
    )
    entropy_step: float = Field(
        0.005, gt=0, description="What that weight rises by after a step below the target, and falls by after others."
    )
    reference: str = Field(
        INITIAL,
        min_length=1,
        description="What kl_coef holds to, and the teacher of opd and opsd: initial (the weights the run began with; "
        "with [lora] the base), a model, or an adapter, which shares the base that [lora] trains on. Of opsd also "
        "current, the weights that learn.",
    )
    reset_reference: int | None = Field(
        None, ge=1, description="Steps after which the reference becomes the policy of then, again and again."
    )
    reference_decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="After each step the reference keeps so much of itself, and takes the rest of the policy: a moving "
        "average.",
    )
    reset_optimizer: bool = Field(
        False, description="The optimiser's moments begin anew, too, where the reference is reset."
    )
    reward_clip: tuple[float, float] | None = Field(None, description="Rewards are cut to [low, high] before all else.")
    length_penalty: float = Field(0.0, ge=0, description="Taken off the reward of a rollout that is as long as can be.")
    length_penalty_start: int = Field(0, ge=0, description="Sampled tokens of a rollout up to which nothing is taken.")
    length_penalty_full: int | None = Field(
        None, ge=1, description="Sampled tokens from which the whole length_penalty is taken; in between, its share."
    )
    repetition_penalty: float = Field(
        0.0,
        ge=0,
        description="Taken off the reward, times the share of n-grams of sampled tokens that were there before.",
    )
    repetition_ngram: int = Field(8, ge=1, description="Tokens of those n-grams.")
    reward_norm: RewardNorm = Field(
        "none",
        description="Less the mean, over the deviation, of the group, the batch, or all rewards of the run so far.",
    )
    router_replay: bool = Field(
        False, description="Of a mixture of experts: the learner sends tokens to the experts that the sampler chose."
    )
    renormalise_cuts: bool = Field(
        False,
        description="Of top_p, top_k, min_p: sampler and learner are compared within the tokens these left to draw.",
    )
    mask_truncated: bool = Field(
        False, description="Rollouts cut off by max_tokens carry no loss; their rewards still count in the baseline."
    )

    @model_validator(mode="before")
    @classmethod
    def _keys_of_the_recipe(cls, data: Any) -> Any:
        return with_recipe(data) if isinstance(data, Mapping) else data

    @field_validator("recipe")
    @classmethod
    def _known_recipe(cls, value: str | None) -> str | None:
        if value is not None and value not in RECIPES:
            near = difflib.get_close_matches(value, RECIPES, n=1, cutoff=0.6)
            hint = f"Did you mean '{near[0]}'?" if near else f"It is one of {', '.join(RECIPES)}."
            raise ValueError(
                f"there is no recipe '{value}'. {hint} Without a recipe: set advantage, loss, aggregation."
            )
        return value

    @model_validator(mode="after")
    def _aggregation_has_a_length(self) -> Self:
        if (self.aggregation == "constant") != (self.aggregation_length is not None):
            raise ValueError('aggregation_length belongs to aggregation = "constant", which needs it')
        return self

    @model_validator(mode="after")
    def _only_the_policy_is_a_reset_reference(self) -> Self:
        moves = [name for name in ("reset_reference", "reference_decay") if getattr(self, name) is not None]
        if len(moves) == 2:
            raise ValueError("reset_reference and reference_decay both move the reference: drop one of the two")
        if moves and self.reference != INITIAL:
            raise ValueError(
                f'{moves[0]} makes the policy its own reference: it is for reference = "{INITIAL}", and not for '
                f"{self.reference}"
            )
        return self

    @property
    def advantage_constants(self) -> dict[str, Any]:
        """Keyword arguments of the advantage."""
        own = algorithms().get(self.advantage)
        return {**self.advantage_args, **{key: getattr(self, key) for key in (own.advantage_keys if own else ())}}

    @property
    def learns_in_parts(self) -> bool:
        """Whether some groups of a batch can be learned before the others are known: nothing is a mean over all."""
        whole = find(self.advantage, "advantages").needs_whole_batch
        return not whole and self.reward_norm not in ("batch", "running") and not self.learns_in_passes

    @property
    def learns_in_passes(self) -> bool:
        """Whether the learner's logprobs of a whole batch are computed before its first optimiser step."""
        several = self.minibatches > 1 or self.epochs > 1 or self.old_logprobs == "recomputed"
        return several or find(self.loss, "loss").selects is not None or self.has_critic or self.prefers

    @property
    def prefers(self) -> bool:
        return self.loss == "dpo"

    @property
    def has_critic(self) -> bool:
        return self.advantage == "gae"

    @field_validator("advantage")
    @classmethod
    def _known_advantage(cls, value: str) -> str:
        return _known(value, "advantages")

    @model_validator(mode="after")
    def _rewards_fit_together(self) -> Self:
        if self.reward_clip is not None and self.reward_clip[0] >= self.reward_clip[1]:
            raise ValueError(f"reward_clip is [low, high], and {list(self.reward_clip)} leaves nothing between the two")
        if self.length_penalty:
            if self.length_penalty_full is None:
                raise ValueError(
                    "length_penalty needs length_penalty_full, the number of sampled tokens from which all of it is "
                    "taken, such as sampling.max_tokens"
                )
            if self.length_penalty_start >= self.length_penalty_full:
                raise ValueError(
                    f"length_penalty_start = {self.length_penalty_start} should be below length_penalty_full = "
                    f"{self.length_penalty_full}"
                )
        algorithm = algorithms().get(self.advantage)
        if algorithm is not None:
            algorithm.check_args("advantages", self.advantage_constants)
        for key in RETURNS:
            if self.differs(key) and (algorithm is None or key not in algorithm.advantage_keys):
                raise ValueError(f"{key} would have no effect: advantage = {self.advantage} does not use it")
        if not self.has_critic and self.differs("critic"):
            raise ValueError(f"[algorithm.critic] would have no effect: advantage = {self.advantage} has none, gae has")
        if self.has_critic and self.kl_in == "reward":
            raise ValueError('kl_in = "reward" takes the KL off advantages, which a critic knows nothing of: remove it')
        if self.returns_scale and self.returns_baseline == "none":
            raise ValueError('returns_scale divides by the deviation from a baseline: set returns_baseline to "turn"')
        if algorithm is not None and self.reward_norm in algorithm.excludes_reward_norm:
            raise ValueError(
                f'reward_norm = "{self.reward_norm}" would have no effect or leave nothing: advantage = '
                f'"{self.advantage}" divides by a statistic of the rewards itself, or is made of the rewards of steps; '
                "use it with grpo or rloo"
            )
        return self
