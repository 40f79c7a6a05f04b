"""Rollouts as token sequences, and the packed batch of one optimiser step that these make.

`PackedBatch` has them end to end in a few flat arrays. Columnar on purpose: a batch crosses processes as a handful of
buffers, and a field is added in one place. There is no padding here and no device; a learner arranges tokens for its
model (`learner/forward/layout.py`).

A token sequence says what was in the context, what was sampled, by which weights, with which probability.

    turn 1   prompt [a b]          completion [c d]
    turn 2   prompt [a b x]        completion [y]        does not extend turn 1: a new branch
    turn 3   prompt [a b c d e]    completion [f]        extends turn 1: merged
    turn 4   prompt [a b x y z]    completion [w]        extends turn 2: merged

    sequence 1   a b c d e f       trained  . . c d . f
    sequence 2   a b x y z w       trained  . . . y . w

So agents that take turns within a rollout give one sequence for each conversation, however they interleave.

Ids, logprobs and versions are copied as the engine reported them; nothing is ever tokenised again here. The number
of branches of a rollout is the length of the list. Rewards and advantages are not handled here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whet.errors import TrainingError
from whet.inference.token_sets import TokenSets
from whet.lazy_ids import unread
from whet.types import TrajectoryStep

UNKNOWN_VERSION = -1


@dataclass(frozen=True, slots=True, eq=False)
class TokenSequence:
    """One token sequence; every array has length T."""

    ids: NDArray[np.int32]
    trained: NDArray[np.bool_]  # true exactly where a token was sampled
    logprobs: NDArray[np.float32]  # the sampler's, at its temperature, and within `kept`; 0 where not sampled
    versions: NDArray[np.int32]  # policy version that sampled the token; -1 where not sampled or not known
    temperature: float | NDArray[np.float32] = 1.0  # what logits were divided by: for all tokens, or for each
    rollout: str = ""  # the rollout it belongs to, for error messages
    experts: NDArray[np.int16] | None = None  # T x layers x experts a token: where the sampler sent it; -1 = not known
    turns: tuple[tuple[int, int, int], ...] = ()  # a turn of the rollout (from 0), where its completion starts, ends
    kept: TokenSets | None = None  # where probabilities are compared within what the sampler's cuts left: that
    cut_mass: NDArray[np.float32] | None = None  # probability that the sampler's cuts took away; None = it cut nothing

    @classmethod
    def demonstration(cls, ids: Sequence[int], trained: Sequence[bool], *, rollout: str = "") -> Self:
        """A sequence to imitate (loss `cross_entropy`): not sampled, so without logprobs and versions."""
        length = len(ids)
        return cls(
            ids=np.asarray(ids, np.int32),
            trained=np.asarray(trained, np.bool_),
            logprobs=np.zeros(length, np.float32),
            versions=np.full(length, UNKNOWN_VERSION, np.int32),
            rollout=rollout,
        )

    def __len__(self) -> int:
        return len(self.ids)


def sequences_of(
    trajectory: Sequence[TrajectoryStep], *, temperature: float, rollout: str, renormalise: bool = False
) -> list[TokenSequence]:
    """The branches of one rollout, in the order in which they began.

    `temperature` is that of turns which do not say theirs. With `renormalise` logprobs are those within what top-p,
    top-k and min-p left to the sampler, and `kept` says what that is.

    A turn is merged into the branch that its prompt extends; into the longest where there are several, and of equals
    into the one that began last. A turn that extends none starts a branch of its own.
    Raises `TrainingError` where a turn has no tokens, tokens that do not fit together, or (with `renormalise`) cuts
    of which its engine does not say what they left.
    """
    branches: list[_Branch] = []
    for number, step in enumerate(trajectory):
        where = f"rollout {rollout}, turn {number + 1}"
        tokens = _checked(step.get("tokens"), where)
        branch = _extended(branches, tokens["prompt_ids"])
        if branch is None:
            branches.append(branch := _Branch())
        branch.append(number, tokens, temperature, renormalise, where)
    return [branch.sequence(rollout) for branch in branches]


@dataclass(slots=True)
class _Branch:
    """The turns of one branch: of each, what follows the turn before."""

    ids: list[int] = field(default_factory=list)
    pieces: list[TokenSequence] = field(default_factory=list)
    experts: list[NDArray[np.int16]] = field(default_factory=list)
    turns: list[tuple[int, int, int]] = field(default_factory=list)

    def append(self, number: int, tokens: Mapping[str, Any], temperature: float, renormalise: bool, where: str) -> None:
        self.pieces.append(_following(tokens, len(self.ids), temperature, renormalise, where))
        if (experts := tokens.get("routed_experts")) is not None:  # of all tokens of the turn but the last
            # What an earlier turn was sampled with stays; a later one may have computed it again with other weights.
            self.experts.append(experts[sum(map(len, self.experts)) :])
        start = len(tokens["prompt_ids"])
        self.ids = [*tokens["prompt_ids"], *tokens["completion_ids"]]
        self.turns.append((number, start, len(self.ids)))

    def sequence(self, rollout: str) -> TokenSequence:
        joined = concatenated(self.pieces)
        each, different = joined.pop("temperatures"), {piece.temperature for piece in self.pieces if len(piece)}
        experts = None
        if self.experts:
            known = np.concatenate(self.experts)
            experts = np.concatenate([known, np.full((len(self.ids) - len(known), *known.shape[1:]), -1, np.int16)])
        cut = any(piece.cut_mass is not None for piece in self.pieces)
        return TokenSequence(
            **joined,
            temperature=different.pop() if len(different) == 1 else each,
            rollout=rollout,
            experts=experts,
            turns=tuple(self.turns),
            cut_mass=np.concatenate([_cut_mass(piece) for piece in self.pieces]) if cut else None,
        )


def concatenated(parts: Sequence[TokenSequence]) -> dict[str, Any]:
    """The arrays of several sequences, one after the other: ids, trained, logprobs, versions, kept, temperatures."""
    kept = None
    if any(part.kept is not None for part in parts):
        kept = TokenSets.joined(TokenSets.whole(len(part)) if part.kept is None else part.kept for part in parts)
    temperatures = [np.broadcast_to(np.asarray(part.temperature, np.float32), len(part)) for part in parts]
    arrays = ("ids", "trained", "logprobs", "versions")
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in arrays}
    return {**joined, "kept": kept, "temperatures": np.concatenate(temperatures)}


def _cut_mass(sequence: TokenSequence) -> NDArray[np.float32]:
    return np.zeros(len(sequence), np.float32) if sequence.cut_mass is None else sequence.cut_mass


def _extended(branches: Sequence[_Branch], prompt_ids: list[int]) -> _Branch | None:
    """The branch that a turn continues: the longest one that its prompt begins with."""
    longest: _Branch | None = None
    for branch in branches:
        longest_yet = longest is None or len(branch.ids) >= len(longest.ids)
        if longest_yet and prompt_ids[: len(branch.ids)] == branch.ids:
            longest = branch
    return longest


def _checked(tokens: Any, where: str) -> Mapping[str, Any]:
    """The tokens of a turn, ids as lists. Raises `TrainingError` where they cannot be trained on."""
    if not tokens:
        raise TrainingError(
            f"{where}: the turn has no token ids, so it cannot be trained on. "
            "Training needs a client that returns the engine's tokens (the policy client does)."
        )
    prompt_ids = list(unread(tokens, "prompt_ids"))
    if not prompt_ids:
        raise TrainingError(f"{where}: the prompt is empty; a model samples its first token after at least one other.")
    length = len(tokens["completion_ids"])
    runs = tokens.get("policy_version") or [(UNKNOWN_VERSION, length)]
    arrays = {
        **{name: tokens[name] for name in tokens.keys() - {"prompt_ids", "prompt_mask"}},
        "prompt_ids": prompt_ids,
        "completion_ids": list(tokens["completion_ids"]),
        "policy_version": [int(version) for version, count in runs for _ in range(count)],
    }
    for name in ("completion_mask", "completion_logprobs", "policy_version", "kept_mass", "kept"):
        if arrays.get(name) is not None and len(arrays[name]) != length:
            raise TrainingError(f"{where}: {length} sampled ids but {len(arrays[name])} values in {name}.")
    experts, fed = arrays.get("routed_experts"), len(prompt_ids) + length - 1
    if experts is not None and len(experts) != fed:
        raise TrainingError(f"{where}: {fed} tokens were fed to the model but {len(experts)} values in routed_experts.")
    return arrays


def _following(
    tokens: Mapping[str, Any], start: int, temperature: float, renormalise: bool, where: str
) -> TokenSequence:
    """The tokens of a turn from `start` on, which is a position in its prompt."""
    prompt_ids, completion_ids = tokens["prompt_ids"][start:], tokens["completion_ids"]
    sampling = tokens.get("sampling") or {}
    sampled = np.asarray(tokens["completion_mask"], np.bool_)
    logprobs = np.asarray(tokens["completion_logprobs"], np.float32)
    mass = None if tokens.get("kept_mass") is None else np.asarray(tokens["kept_mass"], np.float32)
    kept = _kept(tokens, sampling, len(completion_ids), where) if renormalise else None
    if kept is not None and mass is not None:
        logprobs = logprobs - np.log(mass)
    before = len(prompt_ids)

    def after_prompt(values: Any, filler: Any, dtype: Any) -> Any:
        """`values` where a token was sampled, `filler` elsewhere."""
        return np.concatenate([np.full(before, filler, dtype), np.where(sampled, values, filler).astype(dtype)])

    return TokenSequence(
        ids=np.asarray(prompt_ids + completion_ids, np.int32),
        trained=after_prompt(True, False, np.bool_),
        logprobs=after_prompt(logprobs, 0, np.float32),
        versions=after_prompt(tokens["policy_version"], UNKNOWN_VERSION, np.int32),
        temperature=float(sampling.get("temperature", temperature)) or 1.0,  # logprobs of greedy tokens are those of 1
        kept=None if kept is None else TokenSets.joined([TokenSets.whole(before), kept.where(sampled)]),
        cut_mass=None if mass is None else after_prompt(np.maximum(1 - mass, 0), 0, np.float32),
    )


def _kept(tokens: Mapping[str, Any], sampling: Mapping[str, Any], length: int, where: str) -> TokenSets:
    """What the sampler's cuts left of each distribution."""
    sets: TokenSets | None = tokens.get("kept")
    if sets is not None:
        return sets
    cuts = [f"{name} = {value:g}" for name, value in sampling.items() if name != "temperature" or value == 0]
    if cuts or tokens.get("kept_mass") is not None:
        raise TrainingError(
            f"{where}: it was sampled with {', '.join(cuts) or 'a cut'}, and its engine does not say which tokens that "
            "left. [algorithm] renormalise_cuts needs to know them; the embedded engine says them."
        )
    return TokenSets.whole(length)


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch:
    """B sequences of T tokens in all; sequence b owns tokens `cu_seqlens[b] : cu_seqlens[b + 1]`."""

    ids: NDArray[np.int32]  # T
    trained: NDArray[np.bool_]  # T; true exactly where a token was sampled: only these carry loss
    logprobs: NDArray[np.float32]  # T; the sampler's, 0 where not sampled
    advantages: NDArray[np.float32]  # T; 0 where not sampled
    versions: NDArray[np.int32]  # T; policy version of the sampler, -1 where not sampled or not known
    cu_seqlens: NDArray[np.int32]  # B + 1
    temperatures: NDArray[np.float32]  # T; what logits were divided by when sampling; turns and rollouts may differ
    rollouts: tuple[str, ...]  # B; the rollout a sequence belongs to, for error messages
    experts: NDArray[np.int16] | None = None  # T x layers x experts a token; as in `TokenSequence`, None where none has
    kept: TokenSets | None = None  # T; as in `TokenSequence`, None where none has
    weights: NDArray[np.float32] | None = None  # T; what the loss of a token is multiplied with; None: 1
    groups: NDArray[np.int32] | None = None  # B; the group of a sequence, whatever the number; None: of none
    distilled: NDArray[np.bool_] | None = None  # B; learned by the KL to the teacher; None: none is
    values: NDArray[np.float32] | None = None  # T; what a critic expected before the batch; None: there is none
    returns: NDArray[np.float32] | None = None  # T; what it learns
    selected: NDArray[np.bool_] | None = None  # T; what the loss has chosen from the whole step; None: nothing
    teacher_logprobs: NDArray[np.float32] | None = None  # T; of distilled tokens; None: those of the reference

    @property
    def sequences(self) -> int:
        return len(self.rollouts)

    @property
    def lengths(self) -> NDArray[np.int32]:
        return np.diff(self.cu_seqlens)

    @property
    def sequence_of_token(self) -> NDArray[np.int32]:
        """T; which sequence a token is part of."""
        return np.repeat(np.arange(self.sequences, dtype=np.int32), self.lengths)

    @property
    def trained_tokens(self) -> int:
        return int(self.trained.sum())

    def tokens_of(self, sequences: Sequence[int]) -> NDArray[np.int64]:
        """Where the tokens of some sequences are."""
        starts = self.cu_seqlens.astype(np.int64)
        return np.concatenate([np.zeros(0, np.int64), *(np.arange(starts[b], starts[b + 1]) for b in sequences)])

    def take(self, sequences: Sequence[int]) -> PackedBatch:
        """A batch of some of the sequences, in the order given; at least one."""
        chosen, tokens = list(sequences), self.tokens_of(sequences)
        return PackedBatch(
            ids=self.ids[tokens],
            trained=self.trained[tokens],
            logprobs=self.logprobs[tokens],
            advantages=self.advantages[tokens],
            versions=self.versions[tokens],
            cu_seqlens=np.cumsum([0, *self.lengths[chosen]], dtype=np.int32),
            temperatures=self.temperatures[tokens],
            rollouts=tuple(self.rollouts[b] for b in chosen),
            experts=None if self.experts is None else self.experts[tokens],
            kept=None if self.kept is None else self.kept.take(tokens),
            weights=None if self.weights is None else self.weights[tokens],
            groups=None if self.groups is None else self.groups[chosen],
            distilled=None if self.distilled is None else self.distilled[chosen],
            selected=None if self.selected is None else self.selected[tokens],
            values=None if self.values is None else self.values[tokens],
            returns=None if self.returns is None else self.returns[tokens],
            teacher_logprobs=None if self.teacher_logprobs is None else self.teacher_logprobs[tokens],
        )


def pack(
    sequences: Sequence[TokenSequence],
    advantages: Sequence[ArrayLike] | None = None,
    weights: Sequence[float] | None = None,
    groups: Sequence[int] | None = None,
    distilled: Sequence[bool] | None = None,
) -> PackedBatch:
    """One batch out of sequences and their advantages.

    `advantages` holds, for each sequence, one number or one per token; without it every sampled token has 1,
    which is what imitation (`cross_entropy`) wants. `weights` (of the loss of its tokens), `groups` and
    `distilled`: one each.
    """
    assert sequences, "a batch holds at least one sequence"
    assert not any(sequence.trained[:1].any() for sequence in sequences), "a sequence's first token has no predictor"
    advantage_of = [1.0] * len(sequences) if advantages is None else advantages
    per_token = [
        np.where(sequence.trained, np.asarray(advantage, np.float32), np.float32(0))
        for sequence, advantage in zip(sequences, advantage_of, strict=True)
    ]
    return PackedBatch(
        **concatenated(sequences),
        advantages=np.concatenate(per_token),
        cu_seqlens=np.cumsum([0, *map(len, sequences)], dtype=np.int32),
        rollouts=tuple(sequence.rollout for sequence in sequences),
        experts=_experts(sequences),
        weights=None if weights is None else np.repeat(np.asarray(weights, np.float32), [*map(len, sequences)]),
        groups=None if groups is None else np.asarray(groups, np.int32),
        distilled=None if distilled is None else np.asarray(distilled, np.bool_),
    )


def _experts(sequences: Sequence[TokenSequence]) -> NDArray[np.int16] | None:
    shapes = {sequence.experts.shape[1:] for sequence in sequences if sequence.experts is not None}
    if not shapes:
        return None
    assert len(shapes) == 1, "one model sampled the batch"
    unknown = shapes.pop()
    return np.concatenate(
        [
            np.full((len(sequence), *unknown), -1, np.int16) if sequence.experts is None else sequence.experts
            for sequence in sequences
        ]
    )
