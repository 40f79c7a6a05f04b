"""`[[ablation]]`: one evaluation for each combination of the values in its `[ablation.sweep]`. Pure.

    [[ablation]]
    env_id = "arithmetic"

    [ablation.sweep]
    temperature = [0.0, 1.0]

    [ablation.sweep.args]
    max_operand = [9, 99]

makes four. `[ablation.sweep.sampling]`, `[ablation.sweep.taskset]` and `[ablation.sweep.harness]` work like `.args`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import ConfigError
from whet.evals.planning.options import IN_SAMPLING, TABLES, Layer, canonical, merged, option_name

NEVER_SWEPT = ("resume", "output_directory", "save")


@dataclass(frozen=True, slots=True)
class Dimension:
    """One value that is varied: an option, or a key of a table."""

    table: str | None
    key: str
    values: list[Any]

    @property
    def name(self) -> str:
        """How it is called in labels: `temperature`, `args.max_operand`."""
        return self.key if self.table is None else f"{self.table}.{self.key}"

    def layer(self, value: Any) -> Layer:
        return {self.key: value} if self.table is None else {self.table: {self.key: value}}


def dimensions(sweep: Mapping[str, Any], fixed: Layer, source: str) -> list[Dimension]:
    """What `[ablation.sweep]` varies.

    Raises `ConfigError`, beginning with `source`, for a sweep of nothing, for values that are no list, empty or
    repeated, and for a key that `fixed`, the rest of the ablation, sets too.
    """
    found: list[Dimension] = []
    for key, values in sweep.items():
        name = option_name(key, source)
        if name in NEVER_SWEPT:
            raise ConfigError(f"{source}: '{key}' cannot be swept.")
        if name not in TABLES:
            found.append(Dimension(None, name, _values(key, values, source)))
            continue
        if not isinstance(values, Mapping):
            raise ConfigError(f"{source}: '{key}' should be a table of lists, [ablation.sweep.{key}].")
        for inner, listed in values.items():
            option = name == "sampling" and inner in IN_SAMPLING
            found.append(Dimension(None if option else name, inner, _values(f"{key}.{inner}", listed, source)))
    if not found:
        raise ConfigError(f"{source} is empty: give it lists of values, such as temperature = [0.0, 1.0].")
    seen: set[str] = set()
    for dimension in found:
        if dimension.name in seen:
            raise ConfigError(f"{source}: '{dimension.name}' is swept twice; give it once.")
        if sets(fixed, dimension.name):
            raise ConfigError(f"{source}: '{dimension.name}' is swept and set in the same ablation; leave one out.")
        seen.add(dimension.name)
    return found


def expand(
    fixed: Layer, swept: list[Dimension], source: str, folder: Path | None = None
) -> Iterator[tuple[Layer, dict[str, Any]]]:
    """Every combination, the last dimension fastest: its layer, and by name the values that it has."""
    for values in itertools.product(*(dimension.values for dimension in swept)):
        chosen = [dimension.layer(value) for dimension, value in zip(swept, values, strict=True)]
        layer = canonical(merged(*chosen), source, folder)
        yield merged(fixed, layer), {one.name: value for one, value in zip(swept, values, strict=True)}


def sets(layer: Layer, name: str) -> bool:
    """Whether a layer has a value for a dimension's name."""
    table, _, key = name.rpartition(".")
    return key in layer.get(table, {}) if table else key in layer


def _values(key: str, values: Any, source: str) -> list[Any]:
    if not isinstance(values, list):
        raise ConfigError(f"{source}: '{key}' should be a list of values (got {values!r}).")
    if not values:
        raise ConfigError(f"{source}: '{key}' is an empty list; give it at least one value.")
    for place, value in enumerate(values):
        if any(type(value) is type(other) and value == other for other in values[:place]):
            raise ConfigError(f"{source}: '{key}' has {value!r} twice; give each value once.")
    return values
