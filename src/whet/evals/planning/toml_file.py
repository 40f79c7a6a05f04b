"""The config file of `whet eval run CONFIG.toml`: several evaluations, and sweeps.

    num_examples = 20                # what stands above the tables holds for all of them

    [[eval]]
    env_id = "reverse-text"          # also: id, environment

    [[eval]]
    env_id = "arithmetic"
    model = "mini"                   # every option of `whet eval run`, by its long name
    [eval.args]                      # of load_environment
    max_operand = 99
    [eval.sampling]
    top_p = 0.9

`[[ablation]]` is in `sweep.py`. The format is that of `verifiers` 0.1.14 (its spellings are in `options.py`); tables of
an entry complete those above key by key, and relative paths are relative to the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.config import read_toml
from whet.errors import ConfigError
from whet.evals.planning.options import Layer, canonical, merged
from whet.evals.planning.sweep import dimensions, expand

ENTRIES = ("eval", "ablation")


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
