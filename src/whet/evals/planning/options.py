"""One layer of options: a table of a config file, or the command line, in whet's own spelling.

A layer has the fields of `EvalConfig` that were written, with four tables that are merged key by key: `args`,
`taskset`, `harness` and `sampling`. Files written for `verifiers` 0.1.14 use other spellings of some keys; those are
taken too (`SPELLINGS`), and keys that mean nothing here are refused with what to do instead (`ELSEWHERE`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whet.config import aliases_of, fields_with, options_of, resolve_paths, split_lists, validate
from whet.envs.config.sections import loader_arguments, with_files
from whet.errors import ConfigError
from whet.evals.config import EvalConfig

Layer = dict[str, Any]

TABLES = ("args", "taskset", "harness", "sampling")
FIELDS_OF_TABLES = {"env_args": "args", "sampling_args": "sampling"}
OPTIONS = (*options_of(EvalConfig, without=tuple(FIELDS_OF_TABLES)), *TABLES)
SPELLINGS = {**aliases_of(EvalConfig), **FIELDS_OF_TABLES}
_IN_ENDPOINTS = "it belongs to an endpoint: write it into configs/endpoints.toml and name the endpoint as the model"
ELSEWHERE = {
    "provider": _IN_ENDPOINTS,
    "api_client_type": _IN_ENDPOINTS,
    "header": _IN_ENDPOINTS,
    "headers": _IN_ENDPOINTS,
    "header_from_state": "headers of a request cannot be read from a rollout's state here; leave it out",
    "headers_from_state": "headers of a request cannot be read from a rollout's state here; leave it out",
    "env_dir_path": "environments are looked for in environments/; give the environment as a path instead",
    "disable_env_server": "there is no server to leave out; set workers = 1 to stay in one process",
    "disable_tui": "plain lines are printed where there is no terminal; leave it out",
    "verbose": "give -v on the command line",
    "save_to_hf_hub": "save the results, then `whet eval export`",
    "hf_hub_dataset_name": "save the results, then `whet eval export`",
}
PATHS, NUMBERS = fields_with(EvalConfig, Path), fields_with(EvalConfig, int, float)
PATHS_OR_NAMES = ("environment", "model")
IN_SAMPLING = ("temperature", "max_tokens")
"""Sampling arguments that are options of their own."""


def canonical(raw: Mapping[str, Any], source: str, folder: Path | None = None) -> Layer:
    """The layer that a table comes to. `folder` is what its relative paths are relative to.

    Raises `ConfigError`, beginning with `source`, for a key that is unknown, given in two spellings, or has a value
    that no evaluation could have.
    """
    layer: Layer = {}
    written: dict[str, str] = {}
    for key, value in raw.items():
        name = option_name(key, source)
        if name in TABLES and not isinstance(value, Mapping):
            raise ConfigError(f"{source}: '{key}' should be a table (got {value!r}).")
        if name in layer:
            _refuse_twice(name, layer[name], value, f"'{written[name]}' and '{key}'", source)
            value = {**layer[name], **value}
        layer[name], written[name] = dict(value) if name in TABLES else value, key
    if "args" in layer:
        layer["args"] = with_files(layer["args"], folder or Path(), source)
    _split_sampling(layer, source)
    for key in ("shuffle", "workers"):
        _read_word(layer, key)
    _check_values(layer, source)
    if folder is not None:
        resolve_paths(layer, PATHS, folder, PATHS_OR_NAMES)
    return layer


def option_name(key: str, source: str) -> str:
    """The option that a key means. Raises `ConfigError` for a key that means none."""
    if key in ELSEWHERE:
        raise ConfigError(f"{source}: '{key}' has no place here: {ELSEWHERE[key]}.")
    name = SPELLINGS.get(key, key)
    if name not in OPTIONS:
        near = difflib.get_close_matches(key, [*OPTIONS, *SPELLINGS], n=1, cutoff=0.6)
        hint = f"Did you mean '{near[0]}'?" if near else f"Valid keys here: {', '.join(sorted(OPTIONS))}."
        raise ConfigError(f"{source}: unknown key '{key}'. {hint}")
    return name


def merged(*layers: Layer) -> Layer:
    """The layers as one; a later one goes over those before it, its tables key by key."""
    result: Layer = {}
    for layer in layers:
        for name, value in layer.items():
            result[name] = {**result.get(name, {}), **value} if name in TABLES else value
    return result


def to_config(layer: Layer, source: str) -> EvalConfig:
    """The config of one evaluation. `layer` has an environment, and a path as `resume` where it has any."""
    fields = {name: value for name, value in layer.items() if name not in TABLES}
    args = loader_arguments(layer.get("args", {}), layer.get("taskset"), layer.get("harness"), where="eval")
    given = {"env_args": args, "sampling_args": layer.get("sampling", {})}
    return validate(EvalConfig, {**fields, **{name: value for name, value in given.items() if value}}, source)


def _refuse_twice(name: str, before: Any, value: Any, spelled: str, source: str) -> None:
    """Two spellings of a table may complete each other, as in 0.1.14; anything else would be lost."""
    if name not in TABLES:
        raise ConfigError(f"{source}: {spelled} are the same key; give it once.")
    both = sorted(set(before) & set(value))
    if both:
        raise ConfigError(f"{source}: '{both[0]}' is in {spelled}, which are the same table; give it once.")


def _split_sampling(layer: Layer, source: str) -> None:
    sampling = layer.get("sampling", {})
    for name in IN_SAMPLING:
        if name in sampling:
            if name in layer:
                raise ConfigError(f"{source}: '{name}' and sampling.{name} say the same; leave one out.")
            layer[name] = sampling.pop(name)


def _read_word(layer: Layer, key: str) -> None:
    """`shuffle = true` is seed 0, `workers = "auto"` is no number at all."""
    if key == "shuffle" and isinstance(layer.get(key), bool):
        layer[key] = 0 if layer[key] else None
    if key == "workers" and layer.get(key) == "auto":
        layer[key] = None


def _check_values(layer: Layer, source: str) -> None:
    for name, value in layer.items():
        if name in PATHS_OR_NAMES and isinstance(value, list):
            raise ConfigError(
                f"{source}: '{name}' should be one name; for several, sweep them: [[ablation]] with [ablation.sweep] "
                f"{name} = {value!r}."
            )
        if name in NUMBERS and isinstance(value, bool):
            raise ConfigError(f"{source}: '{name}': should be a number (got {str(value).lower()}).")
    split_lists(layer, EvalConfig)
    checked = {name: value for name, value in layer.items() if name in EvalConfig.model_fields}
    if isinstance(checked.get("resume"), bool):
        del checked["resume"]
    # Validated alone, so that the message names the table that is wrong and not the one that inherits from it.
    validate(EvalConfig, {"environment": "-", **checked}, source)
