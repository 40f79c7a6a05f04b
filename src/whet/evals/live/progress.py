"""What the views show of a session of evaluations, as data: fed by the observer's calls. Knows no terminal.

A rollout costs a few microseconds, and memory does not grow with their number.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from whet.clients.usage import JUDGE_USAGE
from whet.envs.env_group import member_of
from whet.evals.analysis.statistics import MeanInterval
from whet.evals.live.scores import Scores
from whet.evals.observer import PlannedEval
from whet.types import RolloutOutput

SLOWEST = 5
KINDS_OF_ERROR = 100
"""Kinds that are counted separately; a hostile environment could make up a new one for every rollout."""
SAMPLE_SECONDS = 5.0
"""How long the latest sample stays: long enough to be read."""
SAMPLES = ("latest", "best", "worst", "failed")


@dataclass(frozen=True, slots=True)
class EvalFacts:
    """One evaluation at one moment."""

    plan: PlannedEval
    name: str  # short, and no other's in the session
    done: int
    errors: int
    finished: bool
    elapsed: float  # seconds since its first rollout began; 0 before
    remaining: float | None  # seconds, estimated from the rollouts so far
    rate: float | None  # rollouts per second
    reward: MeanInterval | None
    metrics: dict[str, float]
    pass_at_k: dict[str, float]
    members: dict[str, MeanInterval | None]  # mean reward of each member of an EnvGroup
    error_kinds: list[tuple[str, int]]  # most frequent first
    truncated: int
    input_tokens: float | None  # of all rollouts together
    output_tokens: float | None
    output_tokens_per_second: float | None
    cost: float | None
    judge_usage: dict[str, float]  # of all rollouts together; empty where no judge was used
    slowest: list[tuple[float, Any]]  # (seconds, task), slowest first
    samples: dict[str, RolloutOutput]  # by their names in `SAMPLES`

    @property
    def total(self) -> int:
        return self.plan.rollouts


@dataclass(frozen=True, slots=True)
class EvalLine:
    """One evaluation among several."""

    name: str
    done: int
    total: int
    reward: MeanInterval | None
    errors: int
    finished: bool


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """All evaluations at one moment, one of them in detail."""

    lines: list[EvalLine]
    selected: int
    detail: EvalFacts
    elapsed: float
    remaining: float | None
    rate: float | None

    @property
    def done(self) -> int:
        return sum(line.done for line in self.lines)

    @property
    def total(self) -> int:
        return sum(line.total for line in self.lines)


class EvalProgress:
    """One evaluation, as far as it has come."""

    def __init__(self, plan: PlannedEval, name: str) -> None:
        self.plan, self.name = plan, name
        self.done = self.errors = self.truncated = 0
        self.began: float | None = None  # about when its first rollout that was not kept began
        self.ended: float | None = None
        self.scores = Scores(plan.rollouts_per_example, plan.pass_threshold)
        self.members = {name: Scores(plan.rollouts_per_example, plan.pass_threshold) for name in plan.members}
        self.samples: dict[str, RolloutOutput] = {}
        self._metrics: dict[str, list[float]] = {}  # [sum, count]
        self._kinds: Counter[str] = Counter()
        self._tokens: list[float] | None = None  # [in, out]
        self._new_output_tokens = 0.0
        self._cost: float | None = None
        self._judges: dict[str, float] = {}
        self._slowest: list[tuple[float, int, Any]] = []  # the index breaks ties: tasks of any kind do not compare
        self._sample_until = -math.inf

    @property
    def new(self) -> int:
        """Rollouts that were not kept from before."""
        return max(0, self.done - self.plan.kept)

    def add(self, row: RolloutOutput, now: float) -> None:
        self.done += 1
        self._count_effort(row)
        if now >= self._sample_until:
            self.samples["latest"] = row
            self._sample_until = now + SAMPLE_SECONDS
        error = row.get("error")
        if error is not None:
            self.errors += 1
            kind = str(error.get("error"))
            self._kinds[kind if kind in self._kinds or len(self._kinds) < KINDS_OF_ERROR else "others"] += 1
            self.samples["failed"] = row
            self._score(row, None)
            return
        self.truncated += bool(row.get("is_truncated"))
        reward = row.get("reward")
        if reward is not None:
            self._keep_extremes(row, reward)
        self._score(row, reward)
        for name, value in (row.get("metrics") or {}).items():
            if value is not None:
                total = self._metrics.setdefault(name, [0.0, 0.0])
                total[0] += value
                total[1] += 1

    def _score(self, row: RolloutOutput, reward: float | None) -> None:
        self.scores.add(row.get("example_id"), reward)
        if self.members and (member := self.members.get(member_of(row))) is not None:
            member.add(row.get("example_id"), reward)

    def _keep_extremes(self, row: RolloutOutput, reward: float) -> None:
        if "best" not in self.samples or reward > self.samples["best"]["reward"]:
            self.samples["best"] = row
        if "worst" not in self.samples or reward < self.samples["worst"]["reward"]:
            self.samples["worst"] = row

    def _count_effort(self, row: RolloutOutput) -> None:
        usage = row.get("token_usage")
        if usage:
            output = usage.get("output_tokens") or 0.0
            self._tokens = self._tokens or [0.0, 0.0]
            self._tokens[0] += usage.get("input_tokens") or 0.0
            self._tokens[1] += output
            if self.new:
                self._new_output_tokens += output
            if "cost" in usage:
                self._cost = (self._cost or 0.0) + usage["cost"]
        for name, used in (row.get(JUDGE_USAGE) or {}).items():
            self._judges[name] = self._judges.get(name, 0.0) + used
        seconds = _seconds(row)
        if seconds and (len(self._slowest) < SLOWEST or seconds > -self._slowest[-1][0]):
            insort(self._slowest, (-seconds, self.done, row.get("example_id")))
            del self._slowest[SLOWEST:]

    def facts(self, now: float) -> EvalFacts:
        end = now if self.ended is None else self.ended
        elapsed = 0.0 if self.began is None else end - self.began
        rate = self.new / elapsed if self.new and elapsed > 0 else None
        left = self.plan.rollouts - self.done
        return EvalFacts(
            plan=self.plan,
            name=self.name,
            done=self.done,
            errors=self.errors,
            finished=self.ended is not None,
            elapsed=elapsed,
            remaining=None if rate is None else max(0, left) / rate,
            rate=rate,
            reward=self.scores.reward(),
            metrics={name: total / count for name, (total, count) in sorted(self._metrics.items())},
            pass_at_k=self.scores.pass_at_k(),
            members={name: scores.reward() for name, scores in self.members.items()},
            error_kinds=sorted(self._kinds.items(), key=lambda item: (-item[1], item[0])),
            truncated=self.truncated,
            input_tokens=None if self._tokens is None else self._tokens[0],
            output_tokens=None if self._tokens is None else self._tokens[1],
            output_tokens_per_second=self._new_output_tokens / elapsed if self._tokens and elapsed > 0 else None,
            cost=self._cost,
            judge_usage=dict(self._judges),
            slowest=[(-seconds, task) for seconds, _, task in self._slowest],
            samples=dict(self.samples),
        )

    def line(self) -> EvalLine:
        done, total = self.done, self.plan.rollouts
        return EvalLine(self.name, done, total, self.scores.reward(), self.errors, self.ended is not None)


class SessionProgress:
    """All evaluations of a session. `clock` is in seconds and only ever compared with itself."""

    def __init__(self, plans: Sequence[PlannedEval], clock: Callable[[], float]) -> None:
        self._clock = clock
        self.started = clock()
        self.evaluations = [EvalProgress(plan, name) for plan, name in zip(plans, names(plans), strict=True)]
        self.current = 0
        """The evaluation of the latest rollout."""

    def rollout(self, evaluation: int, row: RolloutOutput) -> None:
        now = self._clock()
        progress = self.evaluations[evaluation]
        progress.add(row, now)
        self.current = evaluation
        if progress.began is None and progress.new:
            # Others may have started before it, so the duration of the rollout decides.
            progress.began = max(self.started, now - (_seconds(row) or 0.0))

    def finish(self, evaluation: int) -> None:
        self.evaluations[evaluation].ended = self._clock()

    @property
    def finished(self) -> bool:
        return all(one.ended is not None for one in self.evaluations)

    def facts(self, selected: int) -> SessionFacts:
        """Everything a view needs, copied, so that it can be drawn while rollouts come in."""
        now = self._clock()
        new = sum(one.new for one in self.evaluations)
        elapsed = now - self.started
        rate = new / elapsed if new and elapsed > 0 else None
        left = sum(max(0, one.plan.rollouts - one.done) for one in self.evaluations)
        return SessionFacts(
            lines=[one.line() for one in self.evaluations],
            selected=selected,
            detail=self.evaluations[selected].facts(now),
            elapsed=elapsed,
            remaining=None if rate is None else left / rate,
            rate=rate,
        )


def _seconds(row: RolloutOutput) -> float | None:
    """From the rollout's start to its last turn."""
    seconds: float | None = ((row.get("timing") or {}).get("generation") or {}).get("duration")
    return seconds


def names(plans: Sequence[PlannedEval]) -> list[str]:
    """Short names: the environment, its model where there are several, and what a sweep varies."""
    several = len({plan.model for plan in plans}) > 1
    found = []
    for plan in plans:
        varied = [f"{key} {value}" for key, value in plan.varied.items()]
        found.append(", ".join([plan.environment, *([plan.model] if several else []), *varied]))
    count, seen = Counter(found), Counter[str]()
    for place, name in enumerate(found):
        if count[name] > 1:
            seen[name] += 1
            found[place] = f"{name} #{seen[name]}"
    return found
