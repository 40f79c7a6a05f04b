"""A config as it will be submitted: tables whose paths are those of the submission, files, secrets, needs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import tomli_w

from whet.envs.identity.ids import EnvironmentId, parse_id
from whet.envs.loading import locate
from whet.errors import ConfigError, EnvironmentLoadError, ModelLoadError
from whet.inference.model_names import PACKAGED, TINY
from whet.service.client.environments import nested_ids
from whet.service.client.files import SubmissionFiles, with_files
from whet.system.env_files import parse_env_file
from whet.system.files import expanded
from whet.system.offline import is_loopback
from whet.system.redaction import SHORTEST, redacted, redacted_keys

if TYPE_CHECKING:
    from whet.inference.architecture import Architecture


Kind = Literal["training", "sft", "evaluation", "search"]
COMMANDS: Mapping[Kind, str] = {
    "training": "whet train run",
    "sft": "whet train sft",
    "evaluation": "whet eval run",
    "search": "whet gepa run",
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ARGUMENTS = ("args", "taskset", "harness", "env_args", "extra_env_kwargs")


@dataclass
class Packed:
    """What will be submitted. Ids of environments in `tables` are still those of this machine until `settle`."""

    kind: Kind
    name: str
    model: str
    tables: dict[str, Any]
    files: SubmissionFiles
    needs: dict[str, float]
    notes: list[str] = field(default_factory=list)  # for people: what is left to the service, what is unknown

    @property
    def environment_ids(self) -> list[str]:
        return list(dict.fromkeys(table[key] for table, key in _places(self.tables)))

    def settle(self, ids: Mapping[str, str]) -> list[str]:
        """Put the pinned ids in the place of those of this machine; returns those of the hub.

        A section keeps the name that it has in metrics.
        """
        for section in _sections(self.tables):
            label = _label(parse_id(section["id"]))
            if "name" not in section and label and label != _label(parse_id(ids[section["id"]], of_hub=True)):
                section["name"] = label
        for table, key in _places(self.tables):
            table[key] = ids[table[key]]
        return sorted({text for text in ids.values() if parse_id(text, of_hub=True).owner is not None})

    def config(self, secrets: Mapping[str, str]) -> str:
        """The TOML. Raises `ConfigError` where it, or a file, has a secret in it, or what TOML cannot say."""
        for name in _nulls(self.tables):
            raise ConfigError(f"{name} is null, which a config file cannot say. Leave it out.")
        text = tomli_w.dumps(self.tables)
        for key, value in secrets.items():
            if len(value) < SHORTEST:
                continue
            if value in text:
                raise ConfigError(f"the value of {key} is also in the config, which others can read. Remove it there.")
            for name, file in self.files.by_name.items():
                if value.encode() in file.content():
                    raise ConfigError(f"the value of {key} is also in {name}, which others can read. Remove it there.")
        for name in redacted_keys(redacted(self.tables)):
            raise ConfigError(
                f"{name} has a secret in it, and a submitted config is shown to all who see the run. Give the value "
                "with --env-file, and let the environment read the variable."
            )
        return text


def _places(value: Any) -> list[tuple[dict[str, Any], str]]:
    """Every table that names an environment, and its key for that."""
    places = list(nested_ids(value))
    evaluations = value.get("eval")
    if isinstance(evaluations, list):
        places += [(table, "environment") for table in evaluations]
    return places


def _sections(tables: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The `[[env]]` and `[[eval.env]]`, which have names."""
    held_out = tables.get("eval")
    return [*tables.get("env", ()), *(held_out.get("env", ()) if isinstance(held_out, dict) else ())]


def _label(wanted: EnvironmentId) -> str:
    """As `TrainingEnvConfig.label` without a name."""
    return wanted.name if wanted.verified else Path(wanted.text).name


def _nulls(value: Any, name: str = "") -> Iterator[str]:
    if value is None:
        yield name
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _nulls(item, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _nulls(item, f"{name}.{index}")


def is_here(env_id: str, notes: list[str]) -> bool:
    """Whether an environment can be loaded here. What is named without a path may be on the service alone."""
    try:
        locate(env_id)
    except EnvironmentLoadError:
        note = f"environment {env_id}: not installed here, so its arguments are checked by the run"
        if note not in notes:
            notes.append(note)
        return False
    return True


def submit_arguments(section: dict[str, Any], where: str, files: SubmissionFiles) -> None:
    """The files that an environment's arguments name, in place."""
    for key in _ARGUMENTS:
        if key in section:
            section[key] = with_files(section[key], f"{where}.{key}", files)


def submitted_model(name: str, where: str, files: SubmissionFiles, models: Sequence[str], notes: list[str]) -> str:
    """The model's name in the submission; a small directory or .gguf file is submitted. `models` are the service's.

    Raises `ModelLoadError` for a checkpoint or an adapter, and `ConfigError` for one that is too large.
    """
    if name == TINY:
        return name
    path = expanded(name)
    if name not in PACKAGED and (path.is_dir() or path.suffix == ".gguf"):
        if not path.exists():
            raise ModelLoadError(f"{where}: there is no file {name}.")
        if path.is_dir() and not (path / "config.json").is_file():
            raise ModelLoadError(
                f"{where}: {name} is a checkpoint or adapter, not a whole model. Submit the folder that this writes: "
                "whet train export RUN --step N --format model (merged, of a run with [lora])."
            )
        try:
            return files.add(path, where, "models")
        except ConfigError as error:
            raise ConfigError(
                f"{error} A model of this size has to be on the service's machine, or on the Hugging Face hub."
            ) from None
    if name not in models:
        notes.append(f"{where} {name}: not on the service yet; the run fetches it when it begins")
    return name


def submitted_adapter(path: str, where: str, files: SubmissionFiles) -> str:
    """`[lora] path` in the submission. Raises `ConfigError` for a checkpoint."""
    folder = expanded(path)
    if folder.is_dir() and (folder / "adapter_config.json").is_file():
        return files.add(folder, where, "models")
    if folder.exists() or folder.is_absolute():
        raise ConfigError(
            f"{where}: {path} is no adapter directory. Export the checkpoint first: whet train export RUN --step N "
            "--format peft"
        )
    return path


def check_reachable(url: str | None, where: str, service_url: str) -> None:
    """Raises `ConfigError` for an endpoint of this machine that the service cannot reach."""
    for one in (url or "").split(","):
        host = urlsplit(one).hostname or ""
        if host and is_loopback(host) and not is_loopback(urlsplit(service_url).hostname or ""):
            raise ConfigError(
                f"{where} {one} is this machine alone, which the service cannot reach. Give an address that "
                f"{urlsplit(service_url).hostname} can reach."
            )


# Secrets


def secrets_of(files: Sequence[Path], words: Sequence[str]) -> dict[str, str]:
    """The values of env files, and of `-e KEY=VALUE`; `-e KEY` takes the value that KEY has here.

    What is written with -e stands before the files, and an earlier file before a later one; what is empty is left out,
    as in a file whose values are yet to be filled in. Raises `ConfigError`.
    """
    secrets: dict[str, str] = {}
    for path in reversed(files):
        secrets |= parse_env_file(path)
    for word in words:
        key, equals, value = word.partition("=")
        if not _VARIABLE.fullmatch(key):
            raise ConfigError("-e takes KEY=VALUE, or the name of a variable that is set here.")
        if not equals and key not in os.environ:
            raise ConfigError(f"-e {key}: the variable is not set here. Set it, or write it into an --env-file.")
        secrets[key] = value if equals else os.environ[key]
    return {key: value for key, value in secrets.items() if value}


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """The environment's code here sees these variables too, and no process that is started later does."""
    added = {key: value for key, value in values.items() if key not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for key in added:
            os.environ.pop(key, None)


# What a run needs of a machine: cores, bytes of memory, devices. From the dry run's estimate.

MIB = 1 << 20
FIRST_PROCESS, FURTHER_PROCESS = 1024 * MIB, 512 * MIB
"""Python, torch and data of a process; the dry run leaves them out."""
USUAL_CORES = 4
"""Threads of a run that names none, where the machine has as many (`DeploymentConfig.torch_threads`)."""
Needs = dict[str, float]


def needs_of(
    threads: int,
    memory: Mapping[str, int],
    devices: Iterable[str],
    *,
    processes: int,
    largest: Mapping[str, float] | None,
) -> Needs:
    """The needs of a run.

    Args:
        threads: of torch, 0 where the run takes what there is.
        memory: bytes by what they are for, on whatever device that is; empty where it is not known.
        devices: as the config names them; `auto` takes a device where the service's largest runner has one.
        processes: that import torch.
        largest: what that runner has, where it is known.
    """
    has = largest or {}
    cores = threads or min(USUAL_CORES, int(has.get("cores") or 1))
    count = max((_count(one, int(has.get("devices") or 0)) for one in devices), default=0)
    total, own = sum(memory.values()), FIRST_PROCESS + (processes - 1) * FURTHER_PROCESS
    return {
        "cores": cores,
        "memory": own if count else own + total,
        "devices": count,
        "device_memory": total if count else 0,
    }


def changed_needs(needs: Needs, wanted: Needs) -> Needs:
    """The needs with what a user says instead. Without a device all memory is the machine's."""
    changed = {**needs, **wanted}
    if not changed["devices"] and "memory" not in wanted:
        changed["memory"] += changed["device_memory"]
    return changed if changed["devices"] else {**changed, "device_memory": 0}


def _count(device: str, there: int) -> int:
    """How many devices there have to be for this one: `cuda:1` is the second."""
    kind, _, index = device.partition(":")
    if kind == "auto":
        return min(1, there)
    return 0 if kind == "cpu" else int(index or 0) + 1


def sampling_memory(arch: Architecture, parameters: int, tokens: int, dtype: str) -> dict[str, int]:
    """Of a model that answers, with so many tokens in flight."""
    width = 2 if dtype == "bfloat16" else 4
    return {"weights": parameters * width, "KV cache": tokens * arch.kv_values_per_token * width}
