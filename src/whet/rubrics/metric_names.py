"""Names of metrics: one for each function of a rubric, and one for each metric in a flat table.

In a row, metrics are below `metrics` and may have any name. Where they stand beside other numbers (`metrics.jsonl`,
trackers), those called like a statistic have the prefix `metric_`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

PREFIX = "metric_"
STATISTICS = frozenset({"mean", "std", "reward", "errored_frac"})
"""What stands beside the metrics of an environment in `reward/<env>/...` and `eval/<env>/...`, and `pass@<k>`."""
_TAKEN = re.compile(rf"(?:{PREFIX})*(?:{'|'.join(sorted(STATISTICS))}|pass@\d+)")


def metric_names(functions: Iterable[tuple[str, Callable[..., Any] | None]]) -> list[str]:
    """The names under which functions are recorded: `f`, and `f_2` for another function that is called `f` too.

    Args:
        functions: each with its own name. A function that is there twice has one name.
    """
    functions = list(functions)
    own = {name for name, _ in functions}
    known: dict[str, Callable[..., Any] | None] = {}
    names = []
    for name, function in functions:
        shown, number = name, 1
        while (number > 1 and shown in own) or (shown in known and known[shown] != function):
            number += 1
            shown = f"{name}_{number}"
        known[shown] = function
        names.append(shown)
    return names


def flat_name(metric: str) -> str:
    """The name of a metric among statistics: `metric_mean` for `mean`. Different metrics have different ones."""
    return PREFIX + metric if _TAKEN.fullmatch(metric) else metric
