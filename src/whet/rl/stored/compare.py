"""Two runs side by side: what differs in their configs, where their curves are, and their held-out scores. Pure.

A run's config is also compared with the defaults: `changed`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from whet.records.differences import ABSENT, OF_THE_RUN_ITSELF, differences
from whet.rl.config import RunConfig
from whet.rl.monitors.protocol import EvalReport
from whet.rl.sft.config import SftConfig
from whet.rl.storage.run_directory import environment_differences
from whet.rl.stored.series import HEADLINES, curve, held_out, recent
from whet.rl.stored.stored_run import StoredTraining

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
