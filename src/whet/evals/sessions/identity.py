"""The identity of an evaluation, as `metadata.json` keeps it: resuming compares it with that of the current config.

How many tasks and rollouts there are is no part of it, nor how fast they are run: those may change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from whet.envs.environment import Environment
from whet.envs.identity.record import digest_of_files, identify
from whet.evals.config import EvalConfig
from whet.system.redaction import redacted


def identity_of(config: EvalConfig, env: Environment, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a resumed evaluation must have in common with the one before, as JSON values."""
    fields = {
        "environment": config.label,
        **environment_source(config.environment),
        "env_args": config.env_args,
        "extra_env_kwargs": config.extra_env_kwargs,
        "model": config.model,
        "model_runs": "here" if config.local else "behind an endpoint",
        "model_files": model_files(config.model) if config.local else None,
        "dtype": config.dtype if config.local else None,
        "sampling_args": sampling,
        "seed": config.resolved_seed,
        "shuffle": config.shuffle,
        "independent_scoring": config.independent_scoring,
        "state_columns": list(config.state_columns),
    }
    plain: dict[str, Any] = redacted(json.loads(json.dumps(fields, default=str)))
    return plain


def environment_source(environment: str) -> dict[str, Any]:
    """Version, owner, wheel and commit of the environment's package, and a digest of its files; None for what it does
    not have."""
    identity = identify(environment)
    return {
        "environment_version": identity.version,
        "environment_source": identity.content,
        "environment_owner": identity.owner,
        "environment_wheel": identity.wheel,
        "environment_commit": identity.commit,
    }


def model_files(model: str) -> str | None:
    """A digest of the files of a model in a directory; None for one that is known by its name alone."""
    directory = Path(model).expanduser()
    return digest_of_files(directory) if directory.is_dir() else None


def digest_of_tasks(rows: Iterable[Mapping[str, Any]]) -> str:
    """A short digest of tasks: prompts and answers."""
    digest = hashlib.sha256()
    for row in rows:
        known = [row.get(key) for key in ("example_id", "prompt", "answer", "info")]
        digest.update(json.dumps(known, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()[:16]
