"""What an evaluation says: scores with their uncertainty, what went wrong, what it cost, and whether to train on it.

Pure: result rows (`results.jsonl`) in, an `EvalSummary` out; the same rows give the same summary in whatever order they
come. Rows are added one by one and not kept: memory grows by a few numbers a rollout, never by its text. Errored
rollouts are counted and left out of every mean of rewards and metrics; time, tokens and cost are those of all rollouts,
for the failed ones were waited and paid for too.
"""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.envs.env_group import member_of
from whet.evals.analysis.readiness import Readiness, readiness
from whet.evals.analysis.statistics import MeanInterval, Percentiles, clustered_mean, mean_of_means, percentiles
from whet.rollouts.totals import Totals
from whet.types import RolloutOutput

SHOWN = ("example_id", "prompt", "completion", "reward")
"""What of a row is kept of the best and the worst rollout."""


@dataclass(frozen=True, slots=True)
class MemberSummary:
    """One member of an `EnvGroup`."""

    examples: int
    rollouts: int
    errors: int
    reward: MeanInterval | None


@dataclass(frozen=True, slots=True)
class EvalSummary:
    """One environment, one model."""

    environment: str
    model: str
    sampling: str
    examples: int
    rollouts_per_example: int
    rollouts: int
    errors: int
    error_kinds: dict[str, int]  # by class of error, most frequent first
    error_examples: dict[str, str]  # by class of error, what one of its rollouts says: untrusted text, one sentence
    truncated_frac: float | None  # of the rollouts that did not fail
    parse_failed_frac: float | None  # of the rollouts whose answer a parser was to read
    reward: MeanInterval | None  # None where every rollout failed
    metrics: dict[str, float]
    pass_threshold: float
    pass_at_k: dict[str, float]
    pass_all_k: dict[str, float]
    input_tokens: float | None  # a rollout, on average
    output_tokens: float | None
    input_token_percentiles: Percentiles | None
    output_token_percentiles: Percentiles | None
    rollout_seconds: Percentiles | None  # from a rollout's start to its last turn, without its scoring
    cost: float | None  # dollars for all rollouts, where the endpoint's price is known
    judge_usage: dict[str, float]  # input_tokens, output_tokens and, where known, cost of all judges; empty without any
    seconds: float
    readiness: Readiness
    results: Path | None = None
    samples: list[dict[str, Any]] = field(default_factory=list)  # a few rows, best and worst
    varied: dict[str, Any] = field(default_factory=dict)  # what a sweep set for this evaluation, by name
    members: dict[str, MemberSummary] = field(default_factory=dict)  # of an EnvGroup, those with rollouts, by name


@dataclass(frozen=True, slots=True)
class SuiteSummary:
    """All environments of a session with one model, each of which counts alike."""

    model: str
    environments: int
    examples: int
    rollouts: int
    errors: int
    reward: MeanInterval
    seconds: float
    cost: float | None  # None where that of one is unknown


def suites(summaries: Sequence[EvalSummary]) -> list[SuiteSummary]:
    """One for each model that was evaluated once on each of several environments, or on one with several arguments.

    There is none where a sweep varied other things too, or where all rollouts of an environment failed.
    """
    rows = []
    for model in dict.fromkeys(summary.model for summary in summaries):
        mine = [summary for summary in summaries if summary.model == model]
        alone = all(name in ("environment", "model") or name.startswith("args.") for one in mine for name in one.varied)
        estimates = [(one.reward, one.examples) for one in mine if one.reward is not None]
        different = len({f"{one.environment} {one.varied}" for one in mine}) == len(mine) == len(estimates) > 1
        if alone and different:
            costs = [one.cost for one in mine if one.cost is not None]
            rows.append(
                SuiteSummary(
                    model,
                    len(mine),
                    examples=sum(one.examples for one in mine),
                    rollouts=sum(one.rollouts for one in mine),
                    errors=sum(one.errors for one in mine),
                    reward=mean_of_means(estimates),
                    seconds=math.fsum(one.seconds for one in mine),
                    cost=math.fsum(costs) if len(costs) == len(mine) else None,
                )
            )
    return rows


class SummaryBuilder:
    """A summary that grows by a row at a time and can be read at any time."""

    def __init__(
        self,
        *,
        environment: str,
        model: str,
        sampling: str,
        rollouts_per_example: int,
        pass_threshold: float,
        greedy: bool = False,
        varied: Mapping[str, Any] | None = None,
        members: Sequence[str] = (),
    ) -> None:
        """Begin with no rows.

        Args:
            environment: what to call the environment.
            model: what to call the model.
            sampling: how it is sampled, in words.
            rollouts_per_example: attempts at each task; pass@k counts tasks that have them all.
            pass_threshold: reward at or above which a rollout passes.
            greedy: whether the rollouts of a task have to be alike.
            varied: what a sweep set for this evaluation, by name.
            members: of an EnvGroup, as `member_names` has them.
        """
        self._names = {"environment": environment, "model": model, "sampling": sampling}
        self._rollouts_per_example = rollouts_per_example
        self._pass_threshold = pass_threshold
        self._greedy = greedy
        self._varied = dict(varied or {})
        self._members = {name: _Member() for name in members}
        self._totals = Totals(rollouts_per_example, pass_threshold)
        self.rewards: dict[Any, array[float]] = {}  # of every example seen; empty where all of it failed
        self._parsed = Counter[bool]()  # whether the parser found no answer
        self.numbers = {name: array("d") for name in ("input_tokens", "output_tokens", "seconds")}
        self._best: RolloutOutput | None = None
        self._worst: RolloutOutput | None = None

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> SummaryBuilder:
        """For the evaluation that has this `metadata.json`."""
        sampling = metadata.get("sampling_args") or {}
        return cls(
            environment=str(metadata.get("env_id") or "?"),
            model=str(metadata.get("model") or "?"),
            sampling=sampling_name(sampling),
            rollouts_per_example=int(metadata.get("rollouts_per_example") or 1),
            pass_threshold=float(metadata.get("pass_threshold") or 0.5),
            greedy=sampling.get("temperature") == 0,
            varied=varied_of(metadata),
            members=metadata.get("members") or (),
        )

    def add(self, row: RolloutOutput) -> None:
        """Count a rollout that is finished: scored, or failed."""
        self._totals.add([row])
        self._count_effort(row)
        rewards = self.rewards.setdefault(row["example_id"], array("d"))
        error = row.get("error")
        if self._members and (member := self._members.get(member_of(row))) is not None:
            member.add(row["example_id"], None if error is not None else float(row["reward"]))
        if error is not None:
            return
        rewards.append(float(row["reward"]))
        if row.get("parse_failed") is not None:
            self._parsed[bool(row["parse_failed"])] += 1
        if self._best is None or _is_before(row, self._best):
            self._best = _shown(row)
        if self._worst is None or not _is_before(row, self._worst):
            self._worst = _shown(row)

    def _count_effort(self, row: RolloutOutput) -> None:
        usage = row.get("token_usage") or {}
        for name in ("input_tokens", "output_tokens"):
            if name in usage:
                self.numbers[name].append(usage[name])
        seconds = ((row.get("timing") or {}).get("generation") or {}).get("duration")
        if seconds:
            self.numbers["seconds"].append(seconds)

    @property
    def rollouts(self) -> int:
        """Rows so far."""
        return self._totals.num_rollouts

    def averages(self) -> dict[str, Any]:
        """The fields of `metadata.json` that are computed from rows."""
        return self._totals.averages()

    def summarize(self, rows: Iterable[RolloutOutput], *, seconds: float, results: Path | None = None) -> EvalSummary:
        """The summary once `rows`, in any order, are added."""
        for row in rows:
            self.add(row)
        return self.summary(seconds=seconds, results=results)

    def summary(self, *, seconds: float, results: Path | None = None) -> EvalSummary:
        """What the rows so far say. `seconds` is how long the evaluation took, `results` where it is saved."""
        averages = self._totals.averages()
        scored = sum(map(len, self.rewards.values()))
        parsed = self._parsed.total()
        parse_failed_frac = self._parsed[True] / parsed if parsed else None
        usage: Mapping[str, float] = averages["usage"] or {}
        samples = [self._best] if scored == 1 else [self._best, self._worst]
        return EvalSummary(
            **self._names,
            examples=len(self.rewards),
            rollouts_per_example=self._rollouts_per_example,
            rollouts=self._totals.num_rollouts,
            errors=averages["num_errors"],
            error_kinds=self._totals.error_kinds,
            error_examples=averages["error_examples"],
            truncated_frac=self._totals.num_truncated / scored if scored else None,
            parse_failed_frac=parse_failed_frac,
            reward=clustered_mean(self.rewards),
            metrics=dict(sorted(averages["avg_metrics"].items())),
            pass_threshold=self._pass_threshold,
            pass_at_k=averages["pass_at_k"],
            pass_all_k=averages["pass_all_k"],
            input_tokens=usage.get("input_tokens"),
            output_tokens=usage.get("output_tokens"),
            input_token_percentiles=percentiles(self.numbers["input_tokens"]),
            output_token_percentiles=percentiles(self.numbers["output_tokens"]),
            rollout_seconds=percentiles(self.numbers["seconds"]),
            cost=self._totals.cost,
            judge_usage=self._totals.judge_usage,
            seconds=seconds,
            readiness=readiness(
                self.rewards,
                pass_threshold=self._pass_threshold,
                errors=averages["num_errors"],
                parse_failed_frac=parse_failed_frac,
                greedy=self._greedy,
            ),
            results=results,
            samples=[dict(sample) for sample in samples if sample is not None],
            varied=self._varied,
            members={name: member.summary() for name, member in self._members.items() if member.rollouts},
        )


class _Member:
    """The rollouts of one member so far."""

    def __init__(self) -> None:
        self.rollouts = self.errors = 0
        self._rewards: dict[Any, array[float]] = {}

    def add(self, example_id: Any, reward: float | None) -> None:
        rewards = self._rewards.setdefault(example_id, array("d"))
        self.rollouts += 1
        if reward is None:
            self.errors += 1
        else:
            rewards.append(reward)

    def summary(self) -> MemberSummary:
        return MemberSummary(len(self._rewards), self.rollouts, self.errors, clustered_mean(self._rewards))


def sampling_name(sampling_args: Mapping[str, Any]) -> str:
    """`greedy`, `temperature 0.7`, or `default sampling` where nothing is said."""
    temperature = sampling_args.get("temperature")
    if temperature is None:
        return "default sampling"
    return f"temperature {temperature:g}" if temperature else "greedy"


def varied_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a sweep set for an evaluation, by name, from its `metadata.json`."""
    config = metadata.get("config")
    return dict(config.get("varied") or {}) if isinstance(config, Mapping) else {}


def _shown(row: RolloutOutput) -> RolloutOutput:
    return RolloutOutput({key: row.get(key) for key in SHOWN})


def _is_before(row: RolloutOutput, other: RolloutOutput) -> bool:
    """Whether `row` stands before `other` among samples: by reward, then task, then what the model said."""
    mine, theirs = float(row["reward"]), float(other["reward"])
    if mine != theirs:
        return mine > theirs
    if row["example_id"] != other["example_id"]:
        return _id_key(row["example_id"]) < _id_key(other["example_id"])
    return json.dumps(row.get("completion"), default=str) < json.dumps(other.get("completion"), default=str)


def _id_key(example_id: Any) -> tuple[str, Any]:
    """Ids of one kind as they are, others by kind: an id is a number or text."""
    return type(example_id).__name__, example_id
