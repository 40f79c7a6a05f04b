"""Running averages over result rows, and pass@k. Each row is added once; nothing is recomputed.

Errored rollouts are left out of every average, numerator and denominator; their number and share are reported.
Sums are exact, so the averages of the same rows are the same in whatever order they were added.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from whet.clients.usage import JUDGE_USAGE
from whet.rollouts.results import error_message
from whet.system.redaction import redacted
from whet.types import TokenUsage


class ExactSum:
    """A running sum without rounding: numbers that do not overlap and add up to it, smallest first.

    Source: J. R. Shewchuk, "Adaptive Precision Floating-Point Arithmetic and Fast Robust Geometric Predicates" (1997),
    which `math.fsum` follows too.
    """

    __slots__ = ("_odd", "_partials")

    def __init__(self) -> None:
        self._partials: list[float] = []
        self._odd = 0.0  # infinities and NaNs

    def add(self, value: float) -> None:
        if not math.isfinite(value):
            self._odd += value
            return
        count = 0
        for partial in self._partials:
            high = value + partial
            low = partial - (high - value) if abs(value) >= abs(partial) else value - (high - partial)
            if low:
                self._partials[count] = low
                count += 1
            value = high
        self._partials[count:] = [value]

    @property
    def value(self) -> float:
        """The sum, rounded once."""
        return self._odd + math.fsum(self._partials)


class Mean:
    __slots__ = ("_sum", "count")

    def __init__(self) -> None:
        self._sum = ExactSum()
        self.count = 0

    def add(self, value: float) -> None:
        self._sum.add(value)
        self.count += 1

    @property
    def value(self) -> float | None:
        return self._sum.value / self.count if self.count else None

    @property
    def total(self) -> float:
        return self._sum.value


KINDS_OF_ERROR = 100
"""Kinds that are counted separately; a hostile environment could make up a new one for every rollout."""


class Totals:
    def __init__(self, rollouts_per_example: int, pass_threshold: float) -> None:
        self.reward = Mean()
        self.metrics: dict[str, Mean] = defaultdict(Mean)
        self.usage: dict[str, Mean] = defaultdict(Mean)
        self.num_rollouts = 0
        self.num_errors = 0
        self.num_truncated = 0  # of those that did not fail
        self.judges: dict[str, Mean] = defaultdict(Mean)
        self._kinds: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self.passes = PassAtK(rollouts_per_example, pass_threshold)

    def add(self, outputs: Iterable[Mapping[str, Any]]) -> None:
        for output in outputs:
            self.num_rollouts += 1
            for name, tokens in (output.get("token_usage") or {}).items():
                self.usage[name].add(tokens)
            for name, used in (output.get(JUDGE_USAGE) or {}).items():
                self.judges[name].add(used)
            if (error := output.get("error")) is not None:
                self.num_errors += 1
                self._count_error(str(error.get("error")), redacted(error_message(output) or ""))
                continue
            self.num_truncated += bool(output.get("is_truncated"))
            self.reward.add(output["reward"])
            for name, value in output["metrics"].items():
                self.metrics[name].add(value)
            self.passes.add(output["example_id"], output["reward"])

    def _count_error(self, kind: str, message: str) -> None:
        kind = kind if kind in self._kinds or len(self._kinds) < KINDS_OF_ERROR else "others"
        self._kinds[kind] += 1
        self._examples[kind] = min(message, self._examples.get(kind, message))  # the same in whatever order

    @property
    def error_examples(self) -> dict[str, str]:
        """What one rollout of each class of error says (`error_message`), in the order of `error_kinds`.

        Untrusted text: show it in a terminal through `safe_text`, on a page escaped.
        """
        return {kind: self._examples[kind] for kind in self.error_kinds}

    @property
    def error_kinds(self) -> dict[str, int]:
        """By class of error, most frequent first."""
        return dict(sorted(self._kinds.items(), key=lambda item: (-item[1], item[0])))

    @property
    def cost(self) -> float | None:
        """Dollars for all rollouts, where the endpoint's price is known."""
        return self.usage["cost"].total if "cost" in self.usage else None

    @property
    def judge_usage(self) -> dict[str, float]:
        """Of all judges together; empty without any."""
        return {name: used.total for name, used in self.judges.items()}

    def averages(self) -> dict[str, Any]:
        """The fields of `metadata.json` that are computed from rows."""
        pass_at_k, pass_all_k = self.passes.compute()
        usage: TokenUsage | None = None
        if self.usage:
            usage = {name: mean.value for name, mean in self.usage.items()}  # type: ignore[assignment]
        return {
            "avg_reward": self.reward.value,
            "avg_metrics": {name: mean.value for name, mean in self.metrics.items()},
            "avg_error": self.num_errors / self.num_rollouts if self.num_rollouts else 0.0,
            "num_errors": self.num_errors,
            "error_examples": self.error_examples,
            "pass_at_k": pass_at_k,
            "pass_all_k": pass_all_k,
            "usage": usage,
        }


class PassAtK:
    """pass@k = 1 - C(n-c, k) / C(n, k): some of k attempts passes. pass^k = C(c, k) / C(n, k): all of them do.

    The unbiased estimators of Chen et al. 2021 (arXiv:2107.03374) for n attempts of a task of which c passed, averaged
    over the tasks whose attempts are all there; k = 1, 2, 4, ... up to n.
    """

    def __init__(self, rollouts_per_example: int, threshold: float) -> None:
        self.attempts = rollouts_per_example
        self.threshold = threshold
        self.counts: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        self.at_k: dict[int, Mean] = {}
        self.all_k: dict[int, Mean] = {}
        if rollouts_per_example > 1:
            for k in (2**power for power in range(rollouts_per_example.bit_length())):
                self.at_k[k], self.all_k[k] = Mean(), Mean()

    def add(self, example_id: int, reward: float) -> None:
        if not self.at_k:
            return
        count = self.counts[example_id]
        count[0] += 1
        count[1] += reward >= self.threshold
        if count[0] == self.attempts:
            del self.counts[example_id]
            self._add_example(count[1])

    def _add_example(self, passed: int) -> None:
        """A task whose attempts are all there, of which so many passed."""
        for k in self.at_k:
            ways = math.comb(self.attempts, k)
            self.at_k[k].add(1.0 - math.comb(self.attempts - passed, k) / ways)
            self.all_k[k].add(math.comb(passed, k) / ways)

    def compute(self) -> tuple[dict[str, float], dict[str, float]]:
        """By k as text; empty while no task is complete."""
        at_k = {str(k): mean.value for k, mean in self.at_k.items() if mean.value is not None}
        all_k = {str(k): mean.value for k, mean in self.all_k.items() if mean.value is not None}
        return at_k, all_k


@dataclass(frozen=True, slots=True)
class EvalScore:
    """One environment under one way of sampling, on held-out tasks."""

    environment: str
    sampling: str  # "temperature 1", "greedy"
    reward: float
    metrics: dict[str, float]  # means of the rubric's functions, `exact_match` among them where there is one
    rollouts: int
    errors: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)  # rollout rows; empty once they are written down
    pass_at_k: dict[str, float] = field(default_factory=dict)  # by k; empty where a task is attempted once
    by_task: dict[str, float] = field(default_factory=dict)  # mean reward by example_id, of tasks that did not fail
    error_examples: dict[str, str] = field(default_factory=dict)  # a sentence for each class of error
    members: list[EvalScore] = field(default_factory=list)  # of an EnvGroup: `environment` is `<group>/<member>`
