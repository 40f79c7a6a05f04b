"""Scored groups to packed tokens: every sampled token carries its rollout's advantage, its turn's, or its own.

An environment may give turns advantages of their own (`step["advantage"]`), which nothing here changes. The turns to
which it gave none have what `algorithm.advantage` makes of the scored groups: one number for a rollout, or one a token.

Where `mask_truncated` is set, rollouts that were cut off carry no loss, as in DAPO's overlong filtering (Yu et al.
2025, arXiv:2503.14476): an answer without its end says little about the task. They still count among the rollouts of
the batch and in the baseline of their group, since they are what the policy does under this token limit; the loss is
divided by what is left.

`turn_details`: what the learner computed for every sampled token, turn by turn, for display. Pure.

    learner_logprobs   log p under the weights that learned from the token, at the temperature it was sampled with
    ratio              the learner's probability over the sampler's: exp(learner - sampler)
    clipped            dropped by the loss, or its ratio was cut (what policy/clip_frac counts); only where some are
    masked             carries no loss at all, for [algorithm] mask_truncated; only where some do

A value is None for a token that was not sampled, or that carries no loss. The viewer shows these (`whet view RUN`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whet.errors import TrainingError
from whet.rl.algorithms import STD_FLOOR, Array, ScoredGroup, advantages_of
from whet.rl.data.aggregation import aggregate, aggregate_each
from whet.rl.data.batch import PackedBatch, TokenSequence, pack, sequences_of
from whet.rl.learner.protocol import TokenValues
from whet.rl.loop.group import Group
from whet.rl.sections.algorithm import AlgorithmConfig
from whet.rubrics.rubric import own_step_advantages
from whet.types import State

# How rewards are changed before they become advantages: cut, penalised, normalised, in this order.
#
#     reward of the environment  ─reward_clip─▶  ─length_penalty, repetition_penalty─▶  ─reward_norm─▶  advantages
#
# Records and `reward/*` keep what the environment gave. Pure, but for the running statistics, which belong to a
# checkpoint. It has no effect on a group whose environment sets its own advantages.

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


@dataclass(frozen=True, slots=True)
class Assembled:
    """The tokens and advantages of an optimiser step, or of one part of it."""

    batch: PackedBatch
    advantages: list[list[float]]  # of each rollout of each group; the mean of its tokens where each has its own
    sequences: list[TokenSequence]  # as sampled, those included that carry no loss
    shaping: dict[str, float]  # `reward/...` metrics, means over the rollouts; empty where rewards are not changed
    branches: list[list[int]]  # for each rollout of each group, the number of its sequences
    divisors: list[float]  # of each group, its share of what the batch's summed gradients are divided by

    @property
    def divisor(self) -> float:
        return sum(self.divisors)


def assemble(
    groups: Sequence[Group],
    config: AlgorithmConfig,
    shaper: RewardShaper,
    *,
    temperature: float,
    loss_weights: Mapping[str, float] = MappingProxyType({}),
    distilled: Collection[str] = (),
) -> Assembled:
    """All groups of a batch, or (where `config.learns_in_parts`) some of them, which may have sampled no token.

    `loss_weights`: of environments by name, of those that have another than 1. `distilled`: those that are learned by
    the KL to a teacher, without advantages.
    """
    shaped, shaping = shaper.shape(
        [group.rewards_G for group in groups], [[sampled_ids(state) for state in group.states] for group in groups]
    )
    scored = [ScoredGroup(rewards_G, group.states) for group, rewards_G in zip(groups, shaped, strict=True)]
    advantages_by_group = [
        list(map(np.asarray, group.own_advantages_G)) if group.own_advantages else advantages_G
        for group, advantages_G in zip(
            groups, advantages_of(scored, config.advantage, config.advantage_constants), strict=True
        )
    ]
    sequences: list[TokenSequence] = []
    packed: list[TokenSequence] = []
    per_sequence: list[ArrayLike] = []
    branches: list[list[int]] = []
    for group, advantages_G in zip(groups, advantages_by_group, strict=True):
        branches.append([])
        for index, (state, advantage) in enumerate(zip(group.states, advantages_G, strict=True)):
            own = rollout_sequences(group, index, config, temperature=temperature)
            sequences += own
            branches[-1].append(len(own))
            packed += map(_without_loss, own) if config.mask_truncated and state["is_truncated"] else own
            taught = group.environment in distilled
            per_sequence += [0.0] * len(own) if taught else _per_token(own, advantage, own_step_advantages(state))
    rows = [[float(advantage.mean()) for advantage in advantages_G] for advantages_G in advantages_by_group]
    if not packed:
        return Assembled(
            pack([TokenSequence.demonstration([], [])]), rows, sequences, shaping, branches, [0.0] * len(groups)
        )
    trained = (int(sequence.trained.sum()) for sequence in packed)
    tokens = [[sum(islice(trained, count)) for count in counts] for counts in branches]
    names = [group.environment for group in groups]
    aggregation = aggregate_each(tokens, names, config) if distilled else aggregate(tokens, config)
    weights = [
        weight * loss_weights.get(group.environment, 1.0)
        for group, counts, weights_G in zip(groups, branches, aggregation.weights, strict=True)
        for count, weight in zip(counts, weights_G, strict=True)
        for _ in range(count)
    ]
    group_of = [number for number, counts in enumerate(branches) for _ in range(sum(counts))]
    batch = pack(
        packed,
        per_sequence,
        None if set(weights) == {1.0} else weights,
        [groups[number].id for number in group_of],
        [names[number] in distilled for number in group_of] if distilled else None,
    )
    return Assembled(batch, rows, sequences, shaping, branches, aggregation.divisors)


def rollout_sequences(group: Group, index: int, config: AlgorithmConfig, *, temperature: float) -> list[TokenSequence]:
    """The branches of one rollout of a group; `temperature` is that of rollouts and turns which do not say theirs."""
    state = group.states[index]
    return sequences_of(
        state["trajectory"],
        temperature=_sampled_at(state, temperature),
        renormalise=config.renormalise_cuts,
        rollout=f"{group.environment}/{state['example_id']} (group {group.id}, rollout {index})",
    )


def require_tokens(parts: Sequence[Assembled], config: AlgorithmConfig) -> None:
    """Raises `TrainingError` where no token of a whole batch is left to learn from."""
    if any(part.batch.trained_tokens for part in parts):
        return
    if not any(sequence.trained.any() for part in parts for sequence in part.sequences):
        raise TrainingError(
            "no rollout of the batch has a token that the policy sampled, so there is nothing to learn from. Either "
            "the environment ended them before their first turn, or every prompt is too long: compare the prompts "
            "with the model's context less sampling.max_tokens."
        )
    raise TrainingError(
        "every rollout of the batch was cut off, and [algorithm] mask_truncated leaves no token to learn from. "
        "Raise sampling.max_tokens, or train without mask_truncated until answers end by themselves."
    )


def assembly_metrics(parts: Sequence[Assembled], config: AlgorithmConfig, *, temperature: float) -> dict[str, float]:
    """Metrics of changes to the rewards and sequences of a whole batch; empty where there were none."""
    sequences = [sequence for part in parts for sequence in part.sequences]
    rollouts = [sum(map(len, part.branches)) for part in parts]
    metrics = {
        name: float(np.average([part.shaping[name] for part in parts], weights=rollouts)) for name in parts[0].shaping
    }
    if config.mask_truncated:
        sampled = sum(int(sequence.trained.sum()) for sequence in sequences)
        metrics["rollouts/masked_token_frac"] = 1 - sum(part.batch.trained_tokens for part in parts) / sampled
    if any(np.any(sequence.temperature != temperature) for sequence in sequences):
        metrics["sampling/temperature"] = _mean_of_sampled([sequence.temperature for sequence in sequences], sequences)
    if any(sequence.cut_mass is not None for sequence in sequences):
        cut = [0.0 if sequence.cut_mass is None else sequence.cut_mass for sequence in sequences]
        metrics["policy/cut_mass"] = _mean_of_sampled(cut, sequences)
    return metrics


def _mean_of_sampled(values: Sequence[float | NDArray[np.float32]], sequences: Sequence[TokenSequence]) -> float:
    """Over the sampled tokens of sequences that have one value each, or one a token."""
    parts = [np.broadcast_to(value, len(seen))[seen.trained] for value, seen in zip(values, sequences, strict=True)]
    return float(np.concatenate(parts).mean(dtype=np.float64))


def _per_token(sequences: Sequence[TokenSequence], advantage: Array, own: dict[int, float]) -> list[ArrayLike]:
    """The rollout's advantage for each sequence, or one a token where tokens or turns have their own."""
    if advantage.ndim == 0 and not own:
        return [float(advantage)] * len(sequences)
    lengths = {turn: stop - start for sequence in sequences for turn, start, stop in sequence.turns}
    before = dict(zip(sorted(lengths), np.cumsum([0, *(lengths[turn] for turn in sorted(lengths))]), strict=False))
    advantage_C = np.broadcast_to(advantage, sum(lengths.values()))  # of the completion tokens, turn after turn
    arrays: list[ArrayLike] = []
    for sequence in sequences:
        advantages_T = np.zeros(len(sequence), np.float32)
        for turn, start, stop in sequence.turns:
            advantages_T[start:stop] = own.get(turn, advantage_C[before[turn] : before[turn] + stop - start])
        arrays.append(advantages_T)
    return arrays


def _sampled_at(state: State, usual: float) -> float:
    """The temperature of turns without a recorded one: the rollout's, or `usual`; 1 where it was greedy."""
    given: float = (state.get("sampling_args") or {}).get("temperature", usual)
    return given or 1.0


def sampled_ids(state: State) -> Turns:
    """The ids that the policy sampled, turn by turn; turns without tokens are left out."""
    return [step["tokens"]["completion_ids"] for step in state["trajectory"] if step.get("tokens")]


def _without_loss(sequence: TokenSequence) -> TokenSequence:
    return replace(sequence, trained=np.zeros_like(sequence.trained))


TurnDetails = list[dict[str, list[Any]]]
"""Of one rollout: the values of each turn, each as long as its `completion_ids`."""


def turn_details(assembled: Assembled, values: TokenValues) -> list[list[TurnDetails]]:
    """Group by group, rollout by rollout."""
    sequences = enumerate(assembled.sequences)
    return [[_rollout(assembled, values, sequences, count) for count in counts] for counts in assembled.branches]


def _rollout(
    assembled: Assembled, values: TokenValues, sequences: Iterator[tuple[int, Any]], count: int
) -> TurnDetails:
    rows: dict[int, dict[str, list[Any]]] = {}
    batch = assembled.batch
    for _ in range(count):
        number, sequence = next(sequences)
        offset = int(batch.cu_seqlens[number])
        for turn, start, stop in sequence.turns:
            span = slice(offset + start, offset + stop)
            trained, sampled = batch.trained[span], sequence.trained[start:stop]
            learner, sampler = values.logprobs_T[span], batch.logprobs[span]
            rows[turn] = _values(trained, sampled, learner, sampler, values.clipped_T[span])
    return [rows[turn] for turn in sorted(rows)]


def _values(trained: Any, sampled: Any, learner: Any, sampler: Any, clipped: Any) -> dict[str, list[Any]]:
    ratio = np.exp(learner.astype(np.float64) - sampler)
    values: dict[str, list[Any]] = {
        "learner_logprobs": [round(float(p), 6) if kept else None for p, kept in zip(learner, trained, strict=True)],
        "ratio": [float(f"{r:.6g}") if kept else None for r, kept in zip(ratio, trained, strict=True)],
    }
    for name, flags in (("clipped", clipped & trained), ("masked", sampled & ~trained)):
        if flags.any():
            values[name] = [int(flag) for flag in flags]
    return values
