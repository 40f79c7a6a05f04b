"""From an environment or a config file, and the command line, to a `GepaConfig`.

    env_id = "wordle"              # or several: [[env]] with id, name, weight, args, taskset, harness
    model = "mini"
    max_calls = 500

    [gepa]                         # how the search goes
    acceptance = "paired"

    [sampling]
    temperature = 0.7

The command line goes over the file, `[sampling]` key by key. Relative paths are relative to the file. The other way
round, `evaluate_commands` writes the commands that evaluate the best prompt.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.config import aliases_of, fields_with, name_or_path, read_toml, resolve_paths, split_lists, validate
from whet.envs.config.sections import COMPONENTS, with_files
from whet.envs.config.texts import SYSTEM_PROMPT, texts_for
from whet.envs.environment import Environment
from whet.envs.loading import takes_system_prompt
from whet.errors import ConfigError, GepaError
from whet.evals.config import EvalConfig, command_words
from whet.evals.planning.options import IN_SAMPLING
from whet.gepa.components import BEST_COMPONENTS, of_environment, read_seed_prompt
from whet.gepa.config import EnvSection, GepaConfig
from whet.gepa.records.stored import BEST_PROMPT
from whet.gepa.types import Candidate
from whet.records.directory import SEARCH_CONFIG, free_path, load_metadata
from whet.system.files import expanded
from whet.system.redaction import redacted, redacted_keys

COMMAND_LINE = "command line"
SPELLINGS = aliases_of(GepaConfig)
OF_ONE_ENVIRONMENT = {
    "env_id": "id",
    "environment": "id",
    "id": "id",
    "env_args": "args",
    "args": "args",
    "taskset": "taskset",
    "harness": "harness",
}
"""Keys that exclude `[[env]]`."""
IN_EITHER = ("max_calls", "num_train", "num_val", "minibatch_size", "perfect_score", "state_columns", "seed")
"""Keys that may also stand in `[gepa]`."""
PATHS = tuple(name for name in fields_with(GepaConfig, Path) if name != "runs_directory")
TABLES = ("sampling", "reflection_sampling", "gepa")


def load_config(target: str | None, given: Mapping[str, Any]) -> GepaConfig:
    """The config of a new search: of the environment or config file `target`, with the options of the command line.

    Raises `ConfigError`, a line for each mistake.
    """
    if target is None:
        raise ConfigError("name an environment or a config file: whet gepa run ENV. To continue a run: --resume RUN.")
    is_file = target.endswith(".toml")
    path = expanded(target)
    source = str(path) if is_file else COMMAND_LINE
    layer = _canonical(read_toml(path), source, path.parent) if is_file else {"env": [{"id": target}]}
    data = _merged(layer, given)
    if "env" not in data:
        raise ConfigError(f"{source}: 'env_id' is missing; it names the environment. Several are [[env]] tables.")
    data["name"] = _name(data, path.stem if is_file else None)
    return validate(GepaConfig, data, source)


def load_resumed(directory: Path, target: str | None, given: Mapping[str, Any]) -> GepaConfig:
    """The config of a run that is continued, named by its directory or its name: its own, under the options given.

    Where `target` is given as well, it has to come to the same run; that is checked when the run is opened.
    """
    below = GepaConfig.model_fields["runs_directory"].default / directory
    if not (directory / SEARCH_CONFIG).is_file() and (below / SEARCH_CONFIG).is_file():
        directory = below
    if not (directory / SEARCH_CONFIG).is_file():
        raise GepaError(f"--resume {directory}: this is no run of whet gepa; {SEARCH_CONFIG} is missing in it.")
    directory = directory if directory.name else directory.resolve()
    location = {"name": directory.name, "runs_directory": str(directory.parent)}
    if target is not None:
        return load_config(target, {**given, **location})
    metadata = load_metadata(directory) or {}  # also holds nulls, which TOML has not
    saved = metadata.get("config") or read_toml(directory / SEARCH_CONFIG)
    merged = {**_merged(saved, given), **location}
    for name in redacted_keys(merged):
        raise GepaError(
            f"--resume {directory}: {name} was saved without its secret. Give it again, as an option or with the "
            f"config that the run was begun with: whet gepa run SEARCH_CONFIG --resume {directory}."
        )
    return validate(GepaConfig, merged, str(directory))


def _canonical(raw: Mapping[str, Any], source: str, folder: Path | None) -> dict[str, Any]:
    """A file's keys, or those of the command line, in our own spelling."""
    layer: dict[str, Any] = {}
    env: dict[str, Any] = {}
    for key, value in _lifted(raw, source).items():
        into, name = (env, OF_ONE_ENVIRONMENT[key]) if key in OF_ONE_ENVIRONMENT else (layer, SPELLINGS.get(key, key))
        if name in into:
            raise ConfigError(f"{source}: '{key}' is there twice, in two spellings; give it once.")
        into[name] = value
    for name in TABLES:
        if name in layer and not isinstance(layer[name], Mapping):
            raise ConfigError(f"{source}: '{name}' should be a table (got {layer[name]!r}).")
    for name in IN_SAMPLING:
        if name in layer:
            layer["sampling"] = {name: layer.pop(name), **layer.get("sampling", {})}
    if env:
        if "env" in layer:
            given = next(key for key in raw if key in OF_ONE_ENVIRONMENT)
            raise ConfigError(f"{source}: '{given}' is for one environment, and there is [[env]]; use that.")
        layer["env"] = [env]
    elif isinstance(layer.get("env"), Mapping):
        layer["env"] = [layer["env"]]
    if "env" in layer:
        layer["env"] = [_environment(section, source, folder) for section in _sections(layer["env"], source)]
    split_lists(layer, GepaConfig)
    if "seed_prompt" in layer:
        layer["seed_prompt"] = read_seed_prompt(layer["seed_prompt"], folder or Path(), source)
    if folder is not None:
        resolve_paths(layer, PATHS, folder, ("model", "reflection_model"))
    return layer


def _lifted(raw: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The file with sizes and limits at its top, where they belong, also where they are written into `[gepa]`."""
    table = raw.get("gepa")
    if not isinstance(table, Mapping):
        return dict(raw)
    up = {key: value for key, value in table.items() if key in IN_EITHER}
    both = next((key for key in up if key in raw), None)
    if both is not None:
        raise ConfigError(f"{source}: '{both}' and gepa.{both} say the same; leave one out.")
    return {**raw, **up, "gepa": {key: value for key, value in table.items() if key not in up}}


def _sections(value: Any, source: str) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise ConfigError(f"{source}: 'env' should be tables, [[env]].")
    return value


def _environment(section: Mapping[str, Any], source: str, folder: Path | None) -> dict[str, Any]:
    env = {OF_ONE_ENVIRONMENT.get(key, key): value for key, value in section.items()}
    if isinstance(env.get("args"), Mapping):
        env["args"] = with_files(env["args"], folder or Path(), source)
    if folder is not None and isinstance(env.get("id"), str):
        env["id"] = name_or_path(env["id"], folder)
    return env


def _merged(layer: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The command line over the rest."""
    over = _canonical(given, COMMAND_LINE, None)
    data = {**layer, **over}
    for name in TABLES:
        if name in layer and name in over:
            data[name] = {**layer[name], **over[name]}
    if "env" in over and "env" in layer:
        if len(layer["env"]) > 1:
            raise ConfigError("-a is for one environment, and the file has several; write their args into the file.")
        below, above = layer["env"][0], over["env"][0]
        data["env"] = [{**below, **above, "args": {**below.get("args", {}), **above.get("args", {})}}]
    return data


def _name(data: Mapping[str, Any], stem: str | None) -> str:
    """The name that was given, else the first that is free: `wordle`, `wordle-2`, ..."""
    if data.get("name") not in (None, "auto"):
        return str(data["name"])
    first = data["env"][0] if data["env"] else {}
    label = EnvSection(id=str(first.get("id") or "run")).label if stem is None else stem
    label = "gepa-" + (re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.") or "run")
    runs = Path(str(data.get("runs_directory", GepaConfig.model_fields["runs_directory"].default)))
    return free_path(runs, label).name


def evaluate_commands(
    config: GepaConfig, policy: EvalConfig, environments: Mapping[str, Environment], best: Candidate
) -> list[str]:
    """`whet eval run ...` with the best texts instead of each environment's own."""
    return [shlex.join(_evaluate(config, policy, section, environments[section.label], best)) for section in config.env]


def resume_command(config: GepaConfig) -> str:
    return shlex.join(["whet", "gepa", "run", "--resume", str(config.directory), *_env_files(config)])


def _evaluate(
    config: GepaConfig, policy: EvalConfig, section: EnvSection, env: Environment, best: Candidate
) -> list[str]:
    texts = texts_for(env, section.label, best)
    # A loader that takes a system prompt may add to it: there the texts go in as they are to be shown.
    plain = set(texts) == {SYSTEM_PROMPT} and not takes_system_prompt(section.id)
    file = BEST_PROMPT if plain else BEST_COMPONENTS
    if len(config.env) > 1 and not (plain and SYSTEM_PROMPT in best):
        file = of_environment(file, section.label)
    args: dict[str, Any] = {
        name: value for name, value in section.loader_args().items() if name not in (SYSTEM_PROMPT, COMPONENTS)
    }
    args[SYSTEM_PROMPT if plain else COMPONENTS] = {"file": str(config.directory / file)}
    evaluation = policy.model_copy(update={"environment": section.id, "env_args": args})
    return [*command_words(redacted(evaluation.model_dump(mode="json"))), *_env_files(config)]


def _env_files(config: GepaConfig) -> list[str]:
    """Files with keys are never saved, so they have to be named again."""
    return [word for file in config.env_file for word in ("--env-file", str(file))]
