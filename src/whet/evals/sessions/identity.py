"""The identity of an evaluation, as `metadata.json` keeps it: resuming compares it with that of the current config.

How many tasks and rollouts there are is no part of it, nor how fast they are run: those may change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata as packages
from pathlib import Path
from typing import Any

from whet.envs.environment import Environment
from whet.envs.loading import locate
from whet.errors import EnvironmentLoadError
from whet.evals.config import EvalConfig
from whet.system.redaction import redacted

LEFT_OUT = ("__pycache__", ".git", ".venv", ".ruff_cache", ".mypy_cache", ".pytest_cache")
WHOLE_BYTES = 4 << 20  # of a file up to this size all is read, of a larger one so much of either end


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
    """The version of the environment's package and a digest of its files; None where it has neither."""
    try:
        location = locate(environment)
    except EnvironmentLoadError:  # made by the program that evaluates it
        return {"environment_version": None, "environment_source": None}
    version = None
    with contextlib.suppress(packages.PackageNotFoundError):
        version = packages.version(location.module)
    path = location.path.parent if location.path.name == "__init__.py" else location.path
    source = digest_of_files(path) if path.exists() else None
    return {"environment_version": version, "environment_source": source}


def model_files(model: str) -> str | None:
    """A digest of the files of a model in a directory; None for one that is known by its name alone."""
    directory = Path(model).expanduser()
    return digest_of_files(directory) if directory.is_dir() else None


def digest_of_files(path: Path) -> str:
    """A short digest of a file, or of all files in a folder with their names; caches are left out."""
    found = hashlib.sha256()
    for name, file in _files(path):
        size = file.stat().st_size
        found.update(f"{name}\0{size}\0".encode(errors="surrogateescape"))
        with file.open("rb") as content:
            found.update(content.read(WHOLE_BYTES))
            if size > WHOLE_BYTES:
                content.seek(-WHOLE_BYTES, os.SEEK_END)
                found.update(content.read())
    return found.hexdigest()[:16]


def digest_of_tasks(rows: Iterable[Mapping[str, Any]]) -> str:
    """A short digest of tasks: prompts and answers."""
    found = hashlib.sha256()
    for row in rows:
        known = [row.get(key) for key in ("example_id", "prompt", "answer", "info")]
        found.update(json.dumps(known, sort_keys=True, default=str).encode() + b"\n")
    return found.hexdigest()[:16]


def _files(path: Path) -> Sequence[tuple[str, Path]]:
    if path.is_file():
        return [(path.name, path)]
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        found += [Path(folder, name) for name in names if not name.endswith((".pyc", ".pyo"))]
    return sorted((str(file.relative_to(path)), file) for file in found if file.is_file())
