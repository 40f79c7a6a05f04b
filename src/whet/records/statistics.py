"""Groups and histograms of the rollouts of an index, as SQL: nothing is listed to be counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from whet.records.heads import ENVIRONMENT, FROM, Filter, where

HistogramColumn = Literal["reward", "advantage", "output_tokens", "turns", "duration"]


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """One group of rollouts, in numbers."""

    first: int  # number of its first rollout
    group: int
    environment: str
    example_id: int | str | None
    rollouts: int
    mean_reward: float | None  # of those without an error
    least: float | None
    most: float | None
    failed: int
    truncated: int
    output_tokens: float | None  # mean
    question: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often values are in equal intervals from `low` to `high`, the last one closed; by environment."""

    low: float
    high: float
    counts: dict[str, list[int]]
    means: dict[str, float]


def groups_query(filter: Filter) -> tuple[str, dict[str, Any]]:
    """The fields of `GroupTotals`, in the order of the files; `:count` groups from `:start` on."""
    condition, given = where(filter)
    return (
        f"SELECT min(number), group_key, coalesce({ENVIRONMENT}, ''), example_id, count(*), "
        "avg(CASE WHEN error IS NULL THEN reward END), min(reward), max(reward), "
        "sum(error IS NOT NULL OR problem IS NOT NULL), coalesce(sum(truncated), 0), avg(output_tokens), "
        f"coalesce(min(question), '') {FROM} WHERE {condition} GROUP BY group_key ORDER BY min(number) "
        "LIMIT :count OFFSET :start"
    ), given


def _values(column: HistogramColumn, filter: Filter) -> tuple[str, dict[str, Any]]:
    condition, given = where(filter)
    return f"{FROM} WHERE {condition} AND problem IS NULL AND abs({column}) < 1e300", given


def range_query(column: HistogramColumn, filter: Filter) -> tuple[str, dict[str, Any]]:
    """By environment: its name, the least and the most value, and the mean."""
    values, given = _values(column, filter)
    name = f"coalesce({ENVIRONMENT}, '')"
    return f"SELECT {name}, min({column}), max({column}), avg({column}) {values} GROUP BY 1 LIMIT 100", given


def histogram_query(column: HistogramColumn, filter: Filter) -> tuple[str, dict[str, Any]]:
    """By environment and interval, of `:width` from `:low` on: how many there are."""
    values, given = _values(column, filter)
    name = f"coalesce({ENVIRONMENT}, '')"
    interval = f"min(CAST(({column} - :low) / :width AS INTEGER), :intervals - 1)"
    return f"SELECT {name}, {interval}, count(*) {values} GROUP BY 1, 2 LIMIT 10000", given
