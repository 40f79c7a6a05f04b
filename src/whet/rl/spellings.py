"""Other spellings of config keys that people's existing files use. Nothing else in whet knows of them.

Applied to the raw tables before validation. Giving a key in both spellings is an error, since one would be lost.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from whet.errors import ConfigError
from whet.rl.extra_body import merge_extra_body

logger = logging.getLogger(__name__)

SPELLINGS: dict[str, str] = {
    "model_name": "model",
    "lora_rank": "lora.rank",
    "lora_alpha": "lora.alpha",
    "difficulty_threshold": "buffer.difficulty_threshold",
    "use_difficulty_filtering": "buffer.online_difficulty_filtering",
    "num_gpus": "deployment.num_gpus",
    "num_train_gpus": "deployment.num_train_gpus",
    "num_infer_gpus": "deployment.num_infer_gpus",
    "tensor_parallel_size": "inference.tensor_parallel_size",
    "pipeline_parallel_size": "inference.pipeline_parallel_size",
    "gpu_memory_utilization": "inference.gpu_memory_utilization",
    "max_model_len": "inference.max_model_len",
}
BELOW: dict[str, tuple[str, ...]] = {
    "wandb": ("env_file",),
    "sampling": ("num_gpus", "tensor_parallel_size", "pipeline_parallel_size"),
}
"""Keys of the file that reference configs of other trainers have below the header of a table."""


def lifted(data: dict[str, Any], source: str, tables: Sequence[str] = tuple(BELOW)) -> dict[str, Any]:
    """The tables of a file with the keys of `BELOW` where they belong, and one warning that names them.

    `data` is changed in place and returned. Raises `ConfigError` for one that is there as well.
    """
    found: list[str] = []
    for table in tables:
        section = data.get(table)
        for key in BELOW[table]:
            if not isinstance(section, dict) or key not in section:
                continue
            if key in data:
                raise ConfigError(f"{source}: '{key}' and '{table}.{key}' are the same key; give it once.")
            data[key] = section.pop(key)
            found.append(f"{table}.{key} is read as {key}")
    if found:
        where = "In a file such a key belongs above the first [table] header; below one it is that table's."
        logger.warning("%s: %s. %s", source, ", ".join(found), where)
    return data


def canonical(data: dict[str, Any], source: str) -> dict[str, Any]:
    """The same tables in whet's own spelling. `data` is changed in place and returned."""
    for old, new in SPELLINGS.items():
        if old in data:
            _move(data, old, new, source)
    if (use_lora := data.pop("use_lora", None)) is not None:
        if use_lora is True:
            data.setdefault("lora", {})
        elif use_lora is False and "lora" in data:
            raise ConfigError(f"{source}: use_lora = false contradicts [lora]; remove one of the two.")
        elif not isinstance(use_lora, bool):
            raise ConfigError(f"{source}: 'use_lora': should be true or false (got {use_lora!r}).")
    evaluation = data.get("eval")
    for table, sampling in (
        ("sampling", data.get("sampling")),
        ("eval.sampling", evaluation.get("sampling") if isinstance(evaluation, dict) else None),
    ):
        if isinstance(sampling, dict):
            merge_extra_body(sampling, table, source)
    if isinstance(data.get("env"), dict):
        data["env"] = [data["env"]]
    return data


def canonical_overrides(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Overrides with whet's own spelling of their keys, so that they replace what a file says in either spelling."""
    given = {key for key, _ in pairs}
    for old, new in SPELLINGS.items():
        if old in given and new in given:
            raise ConfigError(f"--{old} and --{new} are the same key; give it once.")
    return [(SPELLINGS.get(key, key), value) for key, value in pairs]


def _move(data: dict[str, Any], old: str, new: str, source: str) -> None:
    *sections, last = new.split(".")
    table: dict[str, Any] = data
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{source}: '{section}' should be a table.")
    if last in table:
        raise ConfigError(f"{source}: '{old}' and '{new}' are the same key; give it once.")
    table[last] = data.pop(old)
