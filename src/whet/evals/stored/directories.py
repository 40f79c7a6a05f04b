"""Directories of evaluations: the one of a new evaluation, and the newest of an environment and model to resume."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whet.errors import RunError
from whet.evals.config import EvalConfig
from whet.rollouts.results import METADATA, load_metadata
from whet.system.redaction import redacted

OWN = ("env_args", "extra_env_kwargs", "max_tokens", "temperature", "sampling_args", "seed", "shuffle", "dtype")
"""Settings that distinguish evaluations of one environment and model."""


def find_to_resume(configs: Sequence[EvalConfig]) -> list[Path | None]:
    """For each config the newest evaluation of its environment and model, with its settings; None where there is none.

    One alone takes the newest with other settings where none has its own: resuming reports what has changed.
    Raises `RunError` where none of them has any.
    """
    stored = [_stored(config) for config in configs]
    own = [[one for one in found if _is_of(config, one[1])] for config, found in zip(configs, stored, strict=True)]
    if len(configs) > 1 or any(own):
        stored = own
    newest = [max(found, key=_date)[0] if found else None for found in stored]
    if configs and not any(newest):
        first = configs[0]
        others = f" and {len(configs) - 1} more" if len(configs) > 1 else ""
        raise RunError(
            f"--resume: there is no evaluation of {first.label} with {first.model}{others} in "
            f"{first.output_directory}. Name its directory (--resume=PATH), or leave --resume out to begin one."
        )
    return newest


def _stored(config: EvalConfig) -> list[tuple[Path, dict[str, Any]]]:
    folder = results_directory(config).parent
    found = []
    for file in folder.glob(f"*/{METADATA}"):
        metadata = load_metadata(file.parent)
        if metadata is not None:
            found.append((file.parent, metadata))
    return found


def _is_of(config: EvalConfig, metadata: dict[str, Any]) -> bool:
    """Whether an evaluation was one of this config's arguments and sampling."""
    before, now = metadata.get("config"), redacted(config.model_dump(mode="json"))
    return isinstance(before, dict) and all(before.get(name) == now[name] for name in OWN)


def _date(stored: tuple[Path, dict[str, Any]]) -> tuple[str, float]:
    directory, metadata = stored
    return str(metadata.get("date") or ""), (directory / METADATA).stat().st_mtime


def results_directory(config: EvalConfig) -> Path:
    """`outputs/evals/<env>--<model>/<id>`, new every time."""
    return config.output_directory / f"{_slug(config.label)}--{_slug(config.model)}" / uuid.uuid4().hex[:8]


def _slug(name: str) -> str:
    return re.sub(r"[^\w.@-]+", "--", name).strip("-.") or "unnamed"
