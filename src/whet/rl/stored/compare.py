"""Two runs side by side: what differs in their configs, where their curves are, and their held-out scores. Pure.

A run's config is also compared with the defaults: `changed`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from whet.errors import RunError
from whet.records.differences import ABSENT, OF_THE_RUN_ITSELF, differences
from whet.rl.config import RunConfig
from whet.rl.monitors.protocol import EvalReport, evaluation_metrics
from whet.rl.sft.config import SftConfig
from whet.rl.storage.run_directory import environment_differences
from whet.rl.stored.stored_run import StoredTraining

# The numbers of a run by name: of its steps, and of the evaluations between them. Pure, but for `numbers_of`.

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


PLAIN = {"auto": "float32"}


@dataclass(frozen=True, slots=True)
class Curves:
    """One metric in both runs; `recent` is the mean of the last steps up to the last that both have."""

    name: str
    a: list[float]
    b: list[float]
    recent_a: float | None
    recent_b: float | None


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One environment under one way of sampling: the newest reward of each run."""

    environment: str
    sampling: str
    a: float | None
    b: float | None
    step_a: int | None
    step_b: int | None


@dataclass(frozen=True, slots=True)
class RunComparison:
    """A and B; differences of their configs by path, and of the environments that both trained on."""

    a: str
    b: str
    common_steps: int
    config: dict[str, tuple[Any, Any]]
    curves: list[Curves]
    held_out: list[HeldOut]


def compare_runs(a: StoredTraining, b: StoredTraining) -> RunComparison:
    """The comparison of two runs, which may be running."""
    rows_a, rows_b = a.metrics(), b.metrics()
    common = min(_last_step(rows_a), _last_step(rows_b))
    environments = list(dict.fromkeys([*a.environments, *b.environments]))
    each = [f"reward/{name}/mean" for name in environments] if len(environments) > 1 else []
    curves = []
    for name in (HEADLINES[0], *each, *HEADLINES[1:]):
        one, other = curve(rows_a, name), curve(rows_b, name)
        if one or other:
            shared = [recent(curve([row for row in rows if row["step"] <= common], name)) for rows in (rows_a, rows_b)]
            curves.append(Curves(name, one, other, *shared))
    scores = _scores(a.evaluations(), b.evaluations())
    config = _differences(a.config, b.config) | environment_differences(a.directory, b.directory)
    return RunComparison(str(a.directory), str(b.directory), common, config, curves, scores)


def _scores(a: Sequence[EvalReport], b: Sequence[EvalReport]) -> list[HeldOut]:
    first, second = held_out(a), held_out(b)
    scores = []
    for key in dict.fromkeys([*first, *second]):
        (step_a, reward_a), (step_b, reward_b) = (of.get(key, [(None, None)])[-1] for of in (first, second))
        scores.append(HeldOut(*key, _finite(reward_a), _finite(reward_b), step_a, step_b))
    return scores


def _finite(reward: float | None) -> float | None:
    return reward if reward is not None and math.isfinite(reward) else None


def _last_step(rows: Sequence[Mapping[str, Any]]) -> int:
    return int(rows[-1]["step"]) if rows else 0


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    changes = differences(before, now, ABSENT)
    return {path: pair for path, pair in changes.items() if path not in OF_THE_RUN_ITSELF}


def changed(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config sets to another value than its default, by path; of an optional section all there is."""
    kind = SftConfig if "data" in config else RunConfig
    changes = _differences(_defaults(kind), config)
    # What a run made of `auto` says nothing where it is the plain dtype.
    return {
        path: now for path, (default, now) in changes.items() if now not in (ABSENT, PLAIN.get(str(default), ABSENT))
    }


def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        value = field.get_default(call_default_factory=True)
        if isinstance(value, BaseModel):
            values[name] = value.model_dump(mode="json", exclude_none=True)
        elif value is PydanticUndefined and (section := _section(field.annotation)) is not None:
            values[name] = _defaults(section)
        elif value is not PydanticUndefined and value is not None:
            values[name] = value
    return values


def _section(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
