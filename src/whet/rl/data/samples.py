"""Rollouts as token sequences: what was in the context, what was sampled, by which weights, with which probability.

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

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from whet.errors import TrainingError
from whet.inference.token_sets import TokenSets
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
    for number, step in enumerate(trajectory, start=1):
        turn = _read_turn(step.get("tokens"), f"rollout {rollout}, turn {number}", temperature, renormalise)
        branch = _extended(branches, turn.prompt_ids)
        if branch is None:
            branch = _Branch()
            branches.append(branch)
        branch.append(number - 1, turn)
    return [branch.sequence(rollout) for branch in branches]


@dataclass(slots=True)
class _Turn:
    prompt_ids: list[int]
    completion_ids: list[int]
    sampled: list[bool]
    logprobs: list[float]
    versions: list[int]
    experts: NDArray[np.int16] | None  # of all of its tokens but the last
    temperature: float
    kept: TokenSets | None
    cut_mass: NDArray[np.float32] | None


@dataclass(slots=True)
class _Branch:
    ids: list[int] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    experts: list[NDArray[np.int16]] = field(default_factory=list)
    turns: list[tuple[int, int, int]] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)  # of a turn's own tokens and of those before its completion
    kept: list[TokenSets] = field(default_factory=list)
    cut_mass: list[NDArray[np.float32]] = field(default_factory=list)
    cut: bool = False

    def extended_by(self, prompt_ids: list[int]) -> bool:
        return prompt_ids[: len(self.ids)] == self.ids

    def append(self, number: int, turn: _Turn) -> None:
        new_ids = turn.prompt_ids[len(self.ids) :]
        self.ids += new_ids + turn.completion_ids
        self.turns.append((number, len(self.ids) - len(turn.completion_ids), len(self.ids)))
        self.trained += [False] * len(new_ids) + turn.sampled
        self.logprobs += [0.0] * len(new_ids) + turn.logprobs
        self.versions += [UNKNOWN_VERSION] * len(new_ids) + turn.versions
        self.temperatures += [turn.temperature] * (len(new_ids) + len(turn.completion_ids))
        if turn.kept is not None:
            self.kept += [TokenSets.whole(len(new_ids)), turn.kept]
        self.cut = self.cut or turn.cut_mass is not None
        nothing = np.zeros(len(turn.completion_ids), np.float32)
        self.cut_mass += [np.zeros(len(new_ids), np.float32), nothing if turn.cut_mass is None else turn.cut_mass]
        if turn.experts is not None:
            # What an earlier turn was sampled with stays; a later one may have computed it again with other weights.
            self.experts.append(turn.experts[sum(map(len, self.experts)) :])

    def sequence(self, rollout: str) -> TokenSequence:
        first = self.temperatures[0]
        alike = all(temperature == first for temperature in self.temperatures)
        return TokenSequence(
            ids=np.asarray(self.ids, np.int32),
            trained=np.asarray(self.trained, np.bool_),
            logprobs=np.asarray(self.logprobs, np.float32),
            versions=np.asarray(self.versions, np.int32),
            temperature=first if alike else np.asarray(self.temperatures, np.float32),
            rollout=rollout,
            experts=self._experts(),
            turns=tuple(self.turns),
            kept=TokenSets.joined(self.kept) if self.kept else None,
            cut_mass=np.concatenate(self.cut_mass) if self.cut else None,
        )

    def _experts(self) -> NDArray[np.int16] | None:
        if not self.experts:
            return None
        known = np.concatenate(self.experts)
        return np.concatenate([known, np.full((len(self.ids) - len(known), *known.shape[1:]), -1, np.int16)])


def _extended(branches: Sequence[_Branch], prompt_ids: list[int]) -> _Branch | None:
    """The branch that a turn continues: the longest one that its prompt begins with."""
    found: _Branch | None = None
    for branch in branches:
        longest_yet = found is None or len(branch.ids) >= len(found.ids)
        if longest_yet and branch.extended_by(prompt_ids):
            found = branch
    return found


def _read_turn(tokens: Any, where: str, temperature: float, renormalise: bool) -> _Turn:
    if not tokens:
        raise TrainingError(
            f"{where}: the turn has no token ids, so it cannot be trained on. "
            "Training needs a client that returns the engine's tokens (the policy client does)."
        )
    prompt_ids, completion_ids = list(tokens["prompt_ids"]), list(tokens["completion_ids"])
    length = len(completion_ids)
    sampled = np.array([bool(mark) for mark in tokens["completion_mask"]], np.bool_)
    logprobs = list(tokens["completion_logprobs"])
    runs = list(tokens.get("policy_version") or [(UNKNOWN_VERSION, length)])
    versions = [int(version) for version, count in runs for _ in range(count)]
    if not prompt_ids:
        raise TrainingError(f"{where}: the prompt is empty; a model samples its first token after at least one other.")
    known: list[tuple[str, Sized]] = [
        ("completion_mask", sampled),
        ("completion_logprobs", logprobs),
        ("policy_version", versions),
    ]
    known += [(name, tokens[name]) for name in ("kept_mass", "kept") if tokens.get(name) is not None]
    for name, values in known:
        if len(values) != length:
            raise TrainingError(f"{where}: {length} sampled ids but {len(values)} values in {name}.")
    experts = tokens.get("routed_experts")
    if experts is not None and len(experts) != (fed := len(prompt_ids) + length - 1):
        raise TrainingError(f"{where}: {fed} tokens were fed to the model but {len(experts)} values in routed_experts.")
    sampling = tokens.get("sampling") or {}
    mass = None if tokens.get("kept_mass") is None else np.asarray(tokens["kept_mass"], np.float32)
    kept = _kept(tokens, sampling, length, where) if renormalise else None
    if kept is not None and mass is not None:
        logprobs = (np.asarray(logprobs, np.float32) - np.log(mass)).tolist()
    return _Turn(
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        sampled=sampled.tolist(),
        logprobs=[float(value) if mark else 0.0 for value, mark in zip(logprobs, sampled, strict=True)],
        versions=[value if mark else UNKNOWN_VERSION for value, mark in zip(versions, sampled, strict=True)],
        experts=experts,
        temperature=float(sampling.get("temperature", temperature)) or 1.0,  # logprobs of greedy tokens are those of 1
        kept=None if kept is None else kept.where(sampled),
        cut_mass=None if mass is None else np.where(sampled, np.maximum(1 - mass, 0), 0).astype(np.float32),
    )


def _kept(tokens: Mapping[str, Any], sampling: Mapping[str, Any], length: int, where: str) -> TokenSets:
    """What the sampler's cuts left of each distribution."""
    found: TokenSets | None = tokens.get("kept")
    if found is not None:
        return found
    cuts = [f"{name} = {value:g}" for name, value in sampling.items() if name != "temperature" or value == 0]
    if cuts or tokens.get("kept_mass") is not None:
        raise TrainingError(
            f"{where}: it was sampled with {', '.join(cuts) or 'a cut'}, and its engine does not say which tokens that "
            "left. [algorithm] renormalise_cuts needs to know them; the embedded engine says them."
        )
    return TokenSets.whole(length)
