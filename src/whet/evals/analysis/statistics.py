"""Small samples, honestly: a mean with a confidence interval that knows rollouts of one task resemble each other. Pure.

Source: E. Miller, "Adding Error Bars to Evals" (arXiv:2411.00640), clustered standard errors. Plain Python, so that
evaluating needs no NumPy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

T_975_OF_FEW = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)
"""0.975 quantiles of Student's t with 1 to 9 degrees of freedom, where the expansion below is too coarse."""


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """A mean and its 95 % confidence interval; None where there are too few tasks."""

    mean: float
    low: float | None
    high: float | None
    error: float | None = None  # standard error, which is not cut where the interval is

    @property
    def interval(self) -> str | None:
        """`0.250 to 0.750`."""
        return None if self.low is None or self.high is None else f"{self.low:.3f} to {self.high:.3f}"


def clustered_mean(values_by_example: Mapping[object, Sequence[float]]) -> MeanInterval | None:
    """The mean over all values, with an interval that treats the values of one example as one observation.

    Standard error: sqrt(C / (C - 1) * sum_c (sum_i (x_ci - mean))^2) / N, over C examples with N values together;
    the interval uses Student's t with C - 1 degrees of freedom, and is cut at 0 and 1 where every value lies between
    them. None where there is no value at all.
    """
    clusters = [list(values) for values in values_by_example.values() if values]
    count = sum(map(len, clusters))
    if not count:
        return None
    mean = math.fsum(value for cluster in clusters for value in cluster) / count
    squares = math.fsum(math.fsum(value - mean for value in cluster) ** 2 for cluster in clusters)
    shares = all(0 <= value <= 1 for cluster in clusters for value in cluster)
    return clustered_estimate(mean, squares, examples=len(clusters), count=count, shares=shares)


def clustered_estimate(mean: float, squares: float, *, examples: int, count: int, shares: bool) -> MeanInterval:
    """The interval of `clustered_mean`, from sums.

    Args:
        mean: of all values.
        squares: over the examples, the squared sum of their values' differences from the mean.
        examples: how many there are.
        count: of all values.
        shares: whether every value lies between 0 and 1.
    """
    if examples < 2:
        return MeanInterval(mean, None, None)
    error = math.sqrt(examples / (examples - 1) * squares) / count
    reach = t_975(examples - 1) * error
    low, high = mean - reach, mean + reach
    if shares:
        low, high = max(low, 0.0), min(high, 1.0)
    return MeanInterval(mean, low, high, error)


def mean_of_means(estimates: Sequence[tuple[MeanInterval, int]]) -> MeanInterval:
    """The mean over environments, each of which counts alike, from the mean of each and its number of tasks.

    Standard error: sqrt(sum_e error_e^2) / E; degrees of freedom: (sum_e error_e^2)^2 / sum_e (error_e^4 / (n_e - 1))
    (Welch and Satterthwaite). No interval where one of them has none.
    """
    mean = math.fsum(one.mean for one, _ in estimates) / len(estimates)
    variances = [(one.error**2, tasks) for one, tasks in estimates if one.error is not None]
    if len(variances) < len(estimates):
        return MeanInterval(mean, None, None)
    whole = math.fsum(variance for variance, _ in variances)
    error = math.sqrt(whole) / len(estimates)
    squares = math.fsum(variance**2 / (tasks - 1) for variance, tasks in variances)
    reach = t_975(max(1.0, whole**2 / squares)) * error if squares else 0.0
    return MeanInterval(mean, mean - reach, mean + reach, error)


def t_975(degrees: float) -> float:
    """The 0.975 quantile of Student's t, to three places (Abramowitz and Stegun 26.7.5); of few degrees, a whole number
    of them that is not larger."""
    assert degrees >= 1
    if degrees < len(T_975_OF_FEW) + 1:
        return T_975_OF_FEW[int(degrees) - 1]
    z = 1.959964
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )


def spread(values: Sequence[float]) -> float:
    """Standard deviation of the values themselves (divided by their number)."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Half of the values are at most `p50`, 90 % at most `p90`, 99 % at most `p99`."""

    p50: float
    p90: float
    p99: float


def percentiles(values: Iterable[float]) -> Percentiles | None:
    """Percentiles with linear interpolation between neighbours, as NumPy's; None where there is no value."""
    numbers = list(values)
    if len(numbers) < 2:
        return Percentiles(numbers[0], numbers[0], numbers[0]) if numbers else None
    cuts = statistics.quantiles(numbers, n=100, method="inclusive")
    return Percentiles(cuts[49], cuts[89], cuts[98])
