"""The numbers of a run by name: of its steps, and of the evaluations between them. Pure, but for `numbers_of`."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from whet.errors import RunError
from whet.rl.monitors.protocol import EvalReport, evaluation_metrics
from whet.rl.stored.stored_run import StoredTraining

Row = dict[str, Any]
HEADLINES = (
    "reward/mean",
    "optim/loss",
    "validation/loss",
    "policy/entropy",
    "policy/kl",
    "optim/grad_norm",
    "seq_len/trained_mean",
    "rollouts/truncated_frac",
    "groups/zero_variance_frac",
    "staleness/mean",
    "time/step",
    "perf/tokens_per_s",
)
"""What `show` and `compare` draw, in this order, where a run has it."""
RECENT = 10
"""Steps whose mean stands for where a run is."""


def numbers_of(run: StoredTraining) -> list[Row]:
    """A row a step, `{"step": N, ...}`, with the `eval/*` of the evaluation after that step."""
    return merged(run.metrics(), run.evaluations())


def merged(steps: Iterable[Mapping[str, Any]], evaluations: Iterable[EvalReport]) -> list[Row]:
    """Rows by step; an evaluation before training makes a row of step 0."""
    rows: dict[int, Row] = {}
    for step in steps:
        rows.setdefault(int(step["step"]), {}).update(step)
    for report in evaluations:
        rows.setdefault(report.step, {"step": report.step}).update(evaluation_metrics(report))
    return [rows[step] for step in sorted(rows)]


def names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every metric that a row has, sorted."""
    return sorted({name for row in rows for name in row} - {"step"})


def chosen(rows: Sequence[Row], wanted: Sequence[str], every: int = 1) -> tuple[list[str], list[Row]]:
    """The selected metrics (`reward/` selects all that begin so; nothing selects all), and every n-th row.

    The last row is always there. Raises `RunError` for a name that no row has.
    """
    known = names(rows)
    picked: dict[str, None] = {}
    for name in wanted:
        matching = [one for one in known if one == name or (name.endswith("/") and one.startswith(name))]
        if not matching:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known) or 'none yet'}."
            raise RunError(f"there is no metric {name!r} in this run. {hint}")
        picked |= dict.fromkeys(matching)
    columns = list(picked) or known
    with_values = [row for row in rows if any(name in row for name in columns)]
    last = len(with_values) - 1
    return columns, [row for index, row in enumerate(with_values) if index % every == 0 or index == last]


def curve(rows: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """The finite values of a metric, in order."""
    return [float(row[name]) for row in rows if row.get(name) is not None and math.isfinite(row[name])]


def recent(values: Sequence[float]) -> float | None:
    """The mean of the last few."""
    some = values[-RECENT:]
    return math.fsum(some) / len(some) if some else None


def held_out(evaluations: Sequence[EvalReport]) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """(environment, way of sampling) -> (step, reward) of each evaluation, in order."""
    scores: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for report in evaluations:
        for score in report.scores:
            scores.setdefault((score.environment, score.sampling), []).append((report.step, score.reward))
    return scores
