"""The numbers of one step, under the names of docs/training.md. Pure: groups and outputs in, a flat dict out.

`time/*` and `perf/*` depend on the clock, `engine/*` on which engines end; everything else repeats with the seed.

Of these, how far sampler and learner are apart, split by cause: the engine's numerics, or the age of the weights.

    log p_learner(now) - log q  =  log p_learner(now) - log p_learner(then)  +  log p_learner(then) - log q
                                   staleness                                    engine

`then` are the weights that sampled the token. A token is fresh where those are the learner's present ones, and its
context was computed with them too: there the first difference is 0, and what is left is the engine's. So

    kl_engine    mean k3 over fresh tokens
    kl_stale     kl - kl_engine: what the mean over all trained tokens has more than that

The fresh tokens of a batch cost nothing to look at. Where it has few of them, rollouts that are finished and wait for a
later batch have some: `probe` picks those, and the learner computes their logprobs before its step. A step without any
fresh token has neither metric: nothing is estimated from other steps. Why: docs/design/training-loop.md.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.rl.data.assembly import Assembled, rollout_sequences
from whet.rl.data.batch import PackedBatch, TokenSequence, pack
from whet.rl.learner.protocol import LossOutput, OptimOutput
from whet.rl.loop.group import Group, Tally, zero_variance_fraction
from whet.rl.sections.algorithm import AlgorithmConfig
from whet.rubrics.metric_names import flat_name

# How long rollouts are, running ones included, and whether the long ones reach training.
#
# A rollout that was cancelled for its age has no length any more, and it is the long ones that grow too old. So tokens
# are counted while rollouts run: those of finished turns are known, those of a turn that is being sampled are estimated
# from the time since its request, at the speed of earlier turns. Nothing that is trained depends on that.

LONG = 2.0
"""A rollout is long that has more than so many times the tokens of the median."""

MEMORY = 0.98
"""Weight of earlier turns in how fast the engine draws, against the turn that ended last."""


@dataclass(slots=True, eq=False)
class Turn:
    """A turn that is being sampled."""

    rollout: str
    began: float  # time of its request
    most: int  # tokens it may have


@dataclass(slots=True)
class Lengths:
    """Sampled tokens of running rollouts by name; nothing is kept of finished ones."""

    clock: Callable[[], float] = time.monotonic
    _finished: dict[str, int] = field(default_factory=dict)  # tokens of a rollout's finished turns
    _turns: dict[str, list[Turn]] = field(default_factory=dict)  # requested and not finished
    _tokens: float = 0.0
    _seconds: float = 0.0

    def follow(self, rollouts: Iterable[str]) -> None:
        self._finished.update(dict.fromkeys(rollouts, 0))

    def forget(self, rollouts: Iterable[str]) -> None:
        for rollout in rollouts:
            self._finished.pop(rollout, None)
            self._turns.pop(rollout, None)

    def ask(self, rollout: str | None, most: int) -> Turn | None:
        """Marks the beginning of a turn; None where its rollout is not followed."""
        if rollout is None or rollout not in self._finished:
            return None
        turn = Turn(rollout, self.clock(), most)
        self._turns.setdefault(rollout, []).append(turn)
        return turn

    def end(self, turn: Turn | None, tokens: int | None) -> None:
        """It has so many tokens; None where it was not answered."""
        if turn is None:
            return
        if turn in (going := self._turns.get(turn.rollout, [])):
            going.remove(turn)
        if tokens is None:
            return
        self._tokens = MEMORY * self._tokens + tokens
        self._seconds = MEMORY * self._seconds + self.clock() - turn.began
        if turn.rollout in self._finished:
            self._finished[turn.rollout] += tokens

    def finished(self, rollouts: Iterable[str]) -> int:
        """Tokens of their finished turns, from any thread."""
        return sum(self._finished.get(rollout, 0) for rollout in rollouts)

    def of(self, rollouts: Iterable[str]) -> list[float]:
        """Tokens so far of those that have begun."""
        now, speed = self.clock(), self._tokens / self._seconds if self._seconds else 0.0
        return [
            self._finished[rollout] + sum(min(turn.most, speed * (now - turn.began)) for turn in self._turns[rollout])
            for rollout in rollouts
            if rollout in self._turns
        ]


def lengths_of(groups: Iterable[Group]) -> list[float]:
    """Sampled tokens of each rollout of finished groups."""
    return [
        float(sum(len((step.get("tokens") or {}).get("completion_ids", ())) for step in state["trajectory"]))
        for group in groups
        for state in group.states
    ]


def length_metrics(groups: Sequence[Group], lost: Sequence[float]) -> dict[str, float]:
    """Which share of the drawn, and of the trained rollouts is long; `lost` are lengths of those too old to train."""
    trained = np.array(lengths_of(groups))
    drawn = np.concatenate([trained, lost])
    limit = LONG * np.median(drawn)
    return {
        "rollouts/long_drawn_frac": float((drawn > limit).mean()),
        "rollouts/long_trained_frac": float((trained > limit).mean()),
    }


NOT_SEEDED = ("time/", "perf/", "engine/", "memory/")
POLICY_NAMES = {
    "clipped": "policy/clip_frac",
    "truncated": "policy/tis_frac",
    "masked": "policy/mis_frac",
    "kl_reference": "policy/kl_ref",
    "value_loss": "value/loss",
}


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of one step, by what was waited for."""

    step: float
    wait_batch: float  # the learner for rollouts
    wait_policy: float  # rollouts for the learner: nothing was in flight
    train: float
    weight_sync: float
    score: float

    @property
    def generate(self) -> float:
        """While rollouts were in flight."""
        return max(0.0, self.step - self.wait_policy)

    @property
    def overlap(self) -> float:
        """1 where the longer of sampling and learning hides the other; its share of the step where they take turns."""
        return min(1.0, max(self.generate, self.train) / self.step)


def step_metrics(
    groups: Sequence[Group],
    tally: Tally,
    sequences: Sequence[TokenSequence],
    assembly: Mapping[str, float],
    loss: LossOutput,
    divisor: float,
    optim: OptimOutput,
    timings: Timings,
) -> dict[str, float]:
    """One line of metrics.jsonl, without its step; `assembly` are those of `assembly_metrics` and `mismatch`."""
    states = [state for group in groups for state in group.states]
    attempted = len(states) + tally.unused_rollouts + tally.cancelled_rollouts
    lengths = np.array([len(sequence.ids) for sequence in sequences])
    trained = np.array([int(sequence.trained.sum()) for sequence in sequences])
    per_token = {name: total / loss.tokens for name, total in loss.sums.items()}
    if (distilled := per_token.pop("distilled", None)) is not None:
        per_token["kl_teacher"] /= distilled or 1.0
        if "kl_reference" in per_token:
            per_token["kl_reference"] /= (1 - distilled) or 1.0
        per_token["distilled_frac"] = distilled
    return {
        **reward_metrics(groups),
        **assembly,
        "groups/zero_variance_frac": zero_variance_fraction(groups),
        "groups/replaced": float(tally.replaced),
        "groups/too_old": float(tally.rejected["too old"]),
        "rollouts/errored_frac": tally.errored_rollouts / attempted,
        "rollouts/cancelled_frac": tally.cancelled_rollouts / attempted,
        "rollouts/truncated_frac": _mean([bool(state["is_truncated"]) for state in states]),
        **unread_metrics(states),
        "rollouts/branches": len(sequences) / len(states),
        "rollouts/turns": _mean([len(state["trajectory"]) for state in states]),
        "seq_len/mean": float(lengths.mean()),
        "seq_len/max": float(lengths.max()),
        "seq_len/trained_mean": float(trained.mean()),
        **staleness_metrics(sequences, optim.version - 1),
        "optim/loss": loss.loss / divisor,
        "optim/grad_norm": optim.grad_norm,
        "optim/lr": optim.learning_rate,
        **{POLICY_NAMES.get(name, f"policy/{name}"): value for name, value in per_token.items()},
        "time/step": timings.step,
        "time/generate": timings.generate,
        "time/score": timings.score,
        "time/train": timings.train,
        "time/weight_sync": timings.weight_sync,
        **environment_times(groups),
        "time/wait_batch": timings.wait_batch,
        "time/wait_policy": timings.wait_policy,
        "perf/overlap": timings.overlap,
        "perf/tokens_per_s": float(trained.sum()) / timings.step,
        **utilisation(loss, timings.train),
    }


def reward_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards over all rollouts, per environment, per member of a group, and per function or metric of its rubric."""
    rewards_N = np.concatenate([group.rewards_G for group in groups])
    metrics = {"reward/mean": float(rewards_N.mean()), "reward/std": float(rewards_N.std())}
    by_environment: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for group in groups:
        by_environment[group.environment] += group.states
        if group.member:
            by_environment[f"{group.environment}/{group.member}"] += group.states
    for name, states in sorted(by_environment.items()):
        metrics[f"reward/{name}/mean"] = _mean([state["reward"] for state in states])
        functions: dict[str, list[float]] = defaultdict(list)
        for state in states:
            for function, value in (state.get("metrics") or {}).items():
                functions[function].append(float(value))
        for function, values in sorted(functions.items()):
            metrics[f"reward/{name}/{flat_name(function)}"] = _mean(values)
    return metrics


def unread_metrics(states: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Share of the answers that a parser was to read and found nothing in; nothing where none was to read any."""
    read = [bool(state["parse_failed"]) for state in states if "parse_failed" in state]
    return {"rollouts/unread_frac": _mean(read)} if read else {}


def environment_times(groups: Sequence[Group]) -> dict[str, float]:
    """Seconds of a rollout, per environment: of the longest; means in the model's turns, in all else until the end of
    the last turn (set-up, programs, tools), and in its scoring."""
    times: dict[str, list[float]] = defaultdict(list)
    longest: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        for state in group.states:
            timing = state["timing"]
            times[f"time/{group.environment}/model"].append(timing.model.duration)
            rest = max(0.0, timing.generation.duration - timing.model.duration)
            times[f"time/{group.environment}/environment"].append(rest)
            times[f"time/{group.environment}/score"].append(timing.scoring.duration)
            longest[f"time/{group.environment}/longest"].append(timing.generation.duration)
    means = {name: _mean(seconds) for name, seconds in times.items()}
    return dict(sorted({**means, **{name: max(seconds) for name, seconds in longest.items()}}.items()))


def utilisation(loss: LossOutput, seconds: float) -> dict[str, float]:
    """Share of the learner's peak (MFU) while it learned; nothing where the peak is not known."""
    if loss.flops is None or loss.peak_flops is None:
        return {}
    return {"perf/mfu": loss.flops / (seconds * loss.peak_flops)}


def staleness_metrics(sequences: Sequence[TokenSequence], version: int) -> dict[str, float]:
    """How many versions behind the learner the sampled tokens were."""
    behind = np.concatenate([version - sequence.versions[sequence.trained] for sequence in sequences])
    return {"staleness/mean": float(behind.mean()), "staleness/max": float(behind.max())}


def without_clock(metrics: Mapping[str, float]) -> dict[str, float]:
    """What must be identical in two runs with the same seed."""
    return {name: value for name, value in metrics.items() if not name.startswith(NOT_SEEDED)}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


EVIDENCE = 1 / 16
"""Fresh tokens as a share of the trained ones, from which a batch shows the engine's mismatch by itself. Where it has
fewer, that share of the batch is computed once more, prompts included: a forward pass without a backward one."""


@dataclass(frozen=True, slots=True)
class FreshTokens:
    """Sums over fresh tokens, d = log p - log q."""

    tokens: int = 0
    k3: float = 0.0
    difference: float = 0.0  # |d|
    largest: float = 0.0  # of |d|

    @classmethod
    def of(
        cls, learner_T: NDArray[np.float32], sampler_T: NDArray[np.float32], fresh_T: NDArray[np.bool_]
    ) -> FreshTokens:
        """Of the fresh ones of T tokens with their logprobs."""
        difference = learner_T[fresh_T].astype(np.float64) - sampler_T[fresh_T]
        if not len(difference):
            return cls()
        size = np.abs(difference)
        k3 = float((np.expm1(difference) - difference).sum())
        return cls(len(difference), k3, float(size.sum()), float(size.max()))

    def __add__(self, other: FreshTokens) -> FreshTokens:
        return FreshTokens(
            self.tokens + other.tokens,
            self.k3 + other.k3,
            self.difference + other.difference,
            max(self.largest, other.largest),
        )


def fresh_tokens(sequence: TokenSequence, version: int, *, recomputes: bool) -> NDArray[np.bool_]:
    """T; the sampled tokens that the weights of `version`, the newest there are, drew from a context of their own.

    An engine that `recomputes` (`Engine.recomputes`) has such a context after each update; with any other one a turn
    that runs through an update attends to older keys and values until its end. Its next turn is computed afresh.
    """
    fresh_T: NDArray[np.bool_] = sequence.trained & (sequence.versions == version)
    if not recomputes:
        for _, start, stop in sequence.turns:
            sampled = sequence.trained[start:stop]
            if (sequence.versions[start:stop][sampled] != version).any():
                fresh_T[start:stop] = False
    return fresh_T


def fresh_of_batch(
    parts: Sequence[Assembled], losses: Sequence[LossOutput], version: int, *, recomputes: bool
) -> FreshTokens | None:
    """Of the tokens that carry loss. None where the loss does not look at what the sampler did."""
    fresh = FreshTokens()
    for part, loss in zip(parts, losses, strict=True):
        if loss.values is None:
            return None
        if loss.tokens:
            fresh_T = np.concatenate([fresh_tokens(one, version, recomputes=recomputes) for one in part.sequences])
            fresh += FreshTokens.of(loss.values.logprobs_T, part.batch.logprobs, fresh_T & part.batch.trained)
    return fresh


def probe(
    waiting: Iterable[Group],
    config: AlgorithmConfig,
    *,
    temperature: float,
    version: int,
    recomputes: bool,
    tokens: int,
) -> PackedBatch | None:
    """Rollouts with fresh tokens out of groups that wait: as many as `tokens` hold, and one at least; None without any.

    `trained` of the batch are its fresh tokens.
    """
    chosen: list[TokenSequence] = []
    for group in waiting:
        for index in range(len(group.states)):
            for sequence in rollout_sequences(group, index, config, temperature=temperature):
                fresh_T = fresh_tokens(sequence, version, recomputes=recomputes)
                if not fresh_T.any():
                    continue
                if chosen and sum(map(len, chosen)) + len(sequence) > tokens:
                    return pack(chosen)
                chosen.append(replace(sequence, trained=fresh_T))
    return pack(chosen) if chosen else None


def mismatch_metrics(fresh: FreshTokens, loss: LossOutput, *, stale_tokens: int) -> dict[str, float]:
    """`fresh_frac`, and where there are fresh tokens what they show; `loss` and `stale_tokens` are of the batch."""
    metrics = {"policy/fresh_frac": fresh.tokens / loss.tokens}
    if fresh.tokens:
        metrics |= {
            "policy/kl_engine": fresh.k3 / fresh.tokens,
            "policy/logprob_diff_mean": fresh.difference / fresh.tokens,
            "policy/logprob_diff_max": fresh.largest,
        }
        if stale_tokens:
            metrics["policy/kl_stale"] = loss.sums["kl"] / loss.tokens - metrics["policy/kl_engine"]
    return metrics
