"""`verifiers.utils.metric_utils` and `usage_utils`: running averages over result rows, and tokens of rollouts.

The numbers are computed by `whet.rollouts.totals` and `whet.clients.usage`. Averages here count errored rollouts with
reward 0, as in 0.1; those of `evaluate` leave them out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from whet.clients.usage import UsageTotals, usage_of
from whet.rollouts.totals import Mean, PassAtK
from whet.types import TokenUsage

Row = Mapping[str, Any]


@runtime_checkable
class Metric(Protocol):
    """A number over result rows that is kept up to date row by row."""

    def add_output(self, output: Row) -> None: ...

    def add_outputs(self, outputs: list[Row]) -> None: ...

    def compute(self) -> Any: ...

    def reset(self) -> None: ...


class _OverRows(ABC):
    @abstractmethod
    def add_output(self, output: Row) -> None: ...

    def add_outputs(self, outputs: Iterable[Row]) -> None:
        for output in outputs:
            self.add_output(output)


class MeanMetric(_OverRows):
    """The mean of what `extract` reads from a row; None leaves a row out."""

    def __init__(self) -> None:
        self.reset()

    @abstractmethod
    def extract(self, output: Row) -> float | None: ...

    def add_output(self, output: Row) -> None:
        value = self.extract(output)
        if value is not None:
            self._mean.add(value)

    def reset(self) -> None:
        self._mean = Mean()

    def compute(self) -> float:
        return self._mean.value or 0.0

    @property
    def count(self) -> int:
        return self._mean.count


class RewardMetric(MeanMetric):
    """Mean reward; a row without one counts as 0."""

    def extract(self, output: Row) -> float:
        return float(output.get("reward") or 0.0)


class ErrorRateMetric(MeanMetric):
    """Share of rows with an error."""

    def extract(self, output: Row) -> float:
        return float(output.get("error") is not None)


class _TokensMetric(MeanMetric):
    key: str

    def extract(self, output: Row) -> float | None:
        usage = output.get("token_usage")
        return float(usage[self.key]) if isinstance(usage, Mapping) and self.key in usage else None


class InputTokensMetric(_TokensMetric):
    """Mean tokens of a rollout's prompts; rows without usage are left out."""

    key = "input_tokens"


class OutputTokensMetric(_TokensMetric):
    """Mean tokens that the model wrote."""

    key = "output_tokens"


class FinalInputTokensMetric(_TokensMetric):
    """Mean tokens of the final context that the model did not write."""

    key = "final_input_tokens"


class FinalOutputTokensMetric(_TokensMetric):
    """Mean tokens of the final context that the model wrote."""

    key = "final_output_tokens"


class EnvMetrics(_OverRows):
    """The mean of each number in the rows' `metrics`, over the rows that have it."""

    def __init__(self) -> None:
        self.reset()

    def add_output(self, output: Row) -> None:
        for name, value in (output.get("metrics") or {}).items():
            if isinstance(value, int | float):
                self._means[name].add(value)

    def reset(self) -> None:
        self._means: dict[str, Mean] = defaultdict(Mean)

    def compute(self) -> dict[str, float]:
        return {name: mean.value for name, mean in self._means.items() if mean.value is not None}


class PassAtKMetric(_OverRows):
    """pass@k and pass^k (`whet.rollouts.totals.PassAtK`), over the tasks whose attempts are all there."""

    def __init__(self, rollouts_per_example: int, threshold: float = 0.5) -> None:
        self.rollouts_per_example = rollouts_per_example
        self.threshold = threshold
        self.reset()

    def add_output(self, output: Row) -> None:
        self._passes.add(output.get("example_id", 0), output.get("reward") or 0.0)

    def reset(self) -> None:
        self._passes = PassAtK(self.rollouts_per_example, self.threshold)

    def compute(self) -> tuple[dict[str, float], dict[str, float]]:
        return self._passes.compute()


def extract_usage_tokens(response: Any) -> tuple[int, int]:
    """(input, output) tokens of a response; (0, 0) where it does not say."""
    return usage_of(response) or (0, 0)


class StateUsageTracker:
    """Counts tokens; `usage` is a live view of the totals that cannot be written to."""

    def __init__(self) -> None:
        self._totals = UsageTotals()

    @property
    def usage(self) -> Mapping[str, float]:
        return MappingProxyType(self._totals)

    def increment(self, input_tokens: float = 0, output_tokens: float = 0, *, mark_seen: bool = True) -> None:
        """Raises ValueError for negative numbers. `mark_seen=False` leaves `snapshot` None until usage is reported."""
        seen = self._totals.seen
        self._totals.add(float(input_tokens or 0), float(output_tokens or 0))
        self._totals.seen = seen or mark_seen

    def increment_from_response(self, response: Any) -> None:
        self._totals.add_response(response)

    def snapshot(self) -> TokenUsage | None:
        return self._totals.snapshot()
