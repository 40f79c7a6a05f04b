"""The config file of `whet eval run CONFIG.toml`: several evaluations, and sweeps; and `[tool.whet.eval]` of a package.

    num_examples = 20                # keys above the tables hold for all of them

    [[eval]]
    env_id = "reverse-text"          # also: id, environment

    [[eval]]
    env_id = "arithmetic"
    model = "mini"                   # every option of `whet eval run`, by its long name
    [eval.args]                      # of load_environment
    max_operand = 99
    [eval.sampling]
    top_p = 0.9

An `[[ablation]]` is one evaluation for each combination of the values in its `[ablation.sweep]`:

    [[ablation]]
    env_id = "arithmetic"

    [ablation.sweep]
    temperature = [0.0, 1.0]

    [ablation.sweep.args]
    max_operand = [9, 99]

makes four evaluations; `[ablation.sweep.sampling]`, `.taskset` and `.harness` work like `.args`.

The format is that of `verifiers` 0.1.14 (its spellings are in `options.py`); tables of an entry complete those above
key by key, and relative paths are relative to the file.

What an environment's author thinks a fair evaluation stands in the package's `pyproject.toml`:

    [tool.whet.eval]
    num_examples = 32
    rollouts_per_example = 4
    max_tokens = 64

It is read where that file belongs to the module: in `environments/`, by path, and for a package installed with `-e`.
`[tool.verifiers.eval]`, as packages for `verifiers` 0.1 have it, is read too. What the command line says goes first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from whet.config import part_of, read_toml, table_of, validate
from whet.envs.loading import Location, locate
from whet.errors import ConfigError
from whet.evals.config import EvalConfig
from whet.evals.planning.options import IN_SAMPLING, TABLES, Layer, canonical, merged, option_name

ENTRIES = ("eval", "ablation")
NEVER_SWEPT = ("resume", "output_directory", "save")


@dataclass(frozen=True, slots=True)
class Entry:
    """One evaluation of a file or the command line, before environments' defaults and the command line."""

    source: str  # what to call it in a message: "evals.toml: [[eval]] 2"
    layer: Layer  # has an environment
    varied: dict[str, Any] = field(default_factory=dict)  # what a sweep set, by name


def read_eval_file(path: Path) -> list[Entry]:
    """Every evaluation of a file, in its order, sweeps spread out.

    Raises `ConfigError` in one line that names the file, the table and the key.
    """
    tables = read_toml(path)
    lists = {name: _tables(tables.pop(name, []), name, path) for name in ENTRIES}
    if not any(lists.values()):
        raise ConfigError(f"{path}: there is nothing to evaluate; give at least one [[eval]] or [[ablation]].")
    folder = path.parent
    top = canonical(tables, str(path), folder)
    entries = []
    for number, table in enumerate(lists["eval"], start=1):
        source = f"{path}: [[eval]] {number}"
        entries.append(Entry(source, merged(top, canonical(table, source, folder))))
    for number, table in enumerate(lists["ablation"], start=1):
        entries += _ablation(table, top, f"{path}: [[ablation]] {number}", folder)
    for entry in entries:
        if "environment" not in entry.layer:
            raise ConfigError(f"{entry.source}: 'env_id' is missing; it names the environment.")
    return entries


def _ablation(table: dict[str, Any], top: Layer, source: str, folder: Path) -> list[Entry]:
    sweep = table.pop("sweep", {})
    where = f"{source}: [ablation.sweep]"
    if not isinstance(sweep, dict):
        raise ConfigError(f"{where} should be a table (got {sweep!r}).")
    fixed = canonical(table, source, folder)
    swept = dimensions(sweep, fixed, where)
    return [Entry(source, merged(top, layer), varied) for layer, varied in expand(fixed, swept, where, folder)]


def _tables(value: Any, name: str, path: Path) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        raise ConfigError(f"{path}: [{name}] should be [[{name}]], in double brackets: there may be several.")
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ConfigError(f"{path}: '{name}' should be tables, [[{name}]].")
    return [dict(item) for item in value]


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
    swept: list[Dimension] = []
    for key, values in sweep.items():
        name = option_name(key, source)
        if name in NEVER_SWEPT:
            raise ConfigError(f"{source}: '{key}' cannot be swept.")
        if name not in TABLES:
            swept.append(Dimension(None, name, _values(key, values, source)))
            continue
        if not isinstance(values, Mapping):
            raise ConfigError(f"{source}: '{key}' should be a table of lists, [ablation.sweep.{key}].")
        for inner, listed in values.items():
            option = name == "sampling" and inner in IN_SAMPLING
            swept.append(Dimension(None if option else name, inner, _values(f"{key}.{inner}", listed, source)))
    if not swept:
        raise ConfigError(f"{source} is empty: give it lists of values, such as temperature = [0.0, 1.0].")
    seen: set[str] = set()
    for dimension in swept:
        if dimension.name in seen:
            raise ConfigError(f"{source}: '{dimension.name}' is swept twice; give it once.")
        if sets(fixed, dimension.name):
            raise ConfigError(f"{source}: '{dimension.name}' is swept and set in the same ablation; leave one out.")
        seen.add(dimension.name)
    return swept


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
    for index, value in enumerate(values):
        if any(type(value) is type(other) and value == other for other in values[:index]):
            raise ConfigError(f"{source}: '{key}' has {value!r} twice; give each value once.")
    return values


EvalDefaults = part_of(
    EvalConfig, "EvalDefaults", ("num_examples", "rollouts_per_example", "max_tokens", "temperature")
)
"""`[tool.whet.eval]`: the author's choice of an evaluation; each key is an option of `whet eval run`."""


def eval_defaults(environment: str) -> dict[str, Any]:
    """The options that the environment's package sets; none where it sets none. Nothing of it is imported."""
    file = _pyproject(locate(environment))
    if file is None:
        return {}
    tool = table_of(read_toml(file), "tool")
    ours = table_of(tool, "whet").get("eval")
    theirs = table_of(table_of(tool, "verifiers"), "eval")
    if ours is None:
        ours = {key: theirs[key] for key in ("num_examples", "rollouts_per_example") if key in theirs}
    if not isinstance(ours, dict):
        raise ConfigError(f"{file}: tool.whet.eval should be a table, [tool.whet.eval].")
    return validate(EvalDefaults, ours, f"{file}: [tool.whet.eval]").model_dump(exclude_none=True)


def _pyproject(location: Location) -> Path | None:
    """The `pyproject.toml` of the package a module belongs to, not of another one in a folder above it."""
    folder = location.path if location.path.is_dir() else location.path.parent
    for candidate in (folder, *list(folder.parents)[:2]):
        file = candidate / "pyproject.toml"
        if file.is_file():
            name = str(table_of(read_toml(file), "project").get("name", location.module))
            return file if canonicalize_name(name) == canonicalize_name(location.module) else None
    return None
