"""How rewards are changed before they become advantages: cut, penalised, normalised, in this order.

    reward of the environment  ─reward_clip─▶  ─length_penalty, repetition_penalty─▶  ─reward_norm─▶  advantages

Records and `reward/*` keep what the environment gave. Pure, but for the running statistics, which belong to a
checkpoint. It has no effect on a group whose environment sets its own advantages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from whet.rl.algorithms import STD_FLOOR, Array
from whet.rl.sections.algorithm import AlgorithmConfig

Turns: TypeAlias = Sequence[Sequence[int]]
"""The sampled ids of one rollout, turn by turn."""


@dataclass(slots=True)
class RewardShaper:
    """Shapes the rewards of successive batches. Its only state is count, mean and deviation of the run's rewards."""

    config: AlgorithmConfig
    _seen: Moments = field(default_factory=lambda: Moments())

    @property
    def changes_rewards(self) -> bool:
        config = self.config
        penalised = config.length_penalty or config.repetition_penalty
        return bool(config.reward_clip is not None or penalised or config.reward_norm != "none")

    def shape(
        self, rewards_by_group: Sequence[Array], turns_by_group: Sequence[Sequence[Turns]]
    ) -> tuple[list[Array], dict[str, float]]:
        """The rewards that advantages are made of, and `reward/...` metrics of the changes.

        Without any such setting the rewards are returned unchanged, with no metrics.
        """
        if not self.changes_rewards:
            return list(rewards_by_group), {}
        config, metrics = self.config, dict[str, float]()
        shaped = list(rewards_by_group)
        if config.reward_clip is not None:
            shaped = [np.clip(rewards_G, *config.reward_clip) for rewards_G in shaped]
        for name, weight, share_of in (
            ("length_penalty", config.length_penalty, self._share_of_length),
            ("repetition_penalty", config.repetition_penalty, self._share_repeated),
        ):
            if weight:
                taken = [np.array([weight * share_of(turns) for turns in group]) for group in turns_by_group]
                shaped = [rewards_G - taken_G for rewards_G, taken_G in zip(shaped, taken, strict=True)]
                metrics[f"reward/{name}"] = float(np.concatenate(taken).mean())
        shaped = self._normalised(shaped)
        metrics["reward/shaped_mean"] = float(np.concatenate(shaped).mean())
        return shaped, metrics

    def _share_of_length(self, turns: Turns) -> float:
        assert self.config.length_penalty_full is not None, "checked by the config"
        return share_of_length(sum(map(len, turns)), self.config.length_penalty_start, self.config.length_penalty_full)

    def _share_repeated(self, turns: Turns) -> float:
        return share_repeated(turns, self.config.repetition_ngram)

    def _normalised(self, rewards_by_group: list[Array]) -> list[Array]:
        match self.config.reward_norm:
            case "none":
                return rewards_by_group
            case "group":
                return [Moments.of(rewards_G).standardise(rewards_G) for rewards_G in rewards_by_group]
            case "batch":
                moments = Moments.of(np.concatenate(rewards_by_group))
            case "running":
                moments = self._seen = self._seen.joined(Moments.of(np.concatenate(rewards_by_group)))
        return [moments.standardise(rewards_G) for rewards_G in rewards_by_group]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to hold; empty unless rewards are normalised over the run."""
        if self.config.reward_norm != "running":
            return {}
        return {"rewards": [self._seen.count, self._seen.mean, self._seen.squares]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.config.reward_norm == "running" and "rewards" in state:
            self._seen = Moments(*state["rewards"])


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared deviations of a set of numbers."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values_N: Array) -> Moments:
        mean = float(values_N.mean())
        return cls(len(values_N), mean, float(np.square(values_N - mean).sum()))

    def joined(self, other: Moments) -> Moments:
        """Of both sets together (Chan, Golub, LeVeque 1979)."""
        count = self.count + other.count
        gap = other.mean - self.mean
        mean = self.mean + gap * other.count / count
        return Moments(count, mean, self.squares + other.squares + gap * gap * self.count * other.count / count)

    def standardise(self, values_N: Array) -> Array:
        """(x - mean) / (deviation + 1e-4), the deviation that of a population."""
        return (values_N - self.mean) / (math.sqrt(self.squares / self.count) + STD_FLOOR)


def share_of_length(tokens: int, start: int, full: int) -> float:
    """clip((tokens - start) / (full - start), 0, 1).

    Soft overlong punishment: DAPO, Yu et al. 2025 (arXiv:2503.14476), with start = L_max - L_cache, full = L_max.
    """
    return min(1.0, max(0.0, (tokens - start) / (full - start)))


def share_repeated(turns: Turns, ngram: int) -> float:
    """1 - distinct n-grams / n-grams of the sampled ids; n-grams do not reach over turns, 0 where there is none.

    After the repetition penalty of Yeo et al. 2025, Demystifying Long Chain-of-Thought Reasoning (arXiv:2502.03373),
    here as one number a rollout.
    """
    ngrams = [tuple(ids[i : i + ngram]) for ids in turns for i in range(len(ids) - ngram + 1)]
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0
