"""`verifiers.utils.path_utils`: where results are stored, and which of them are not complete."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from whet.errors import RunError
from whet.records.directory import METADATA, RESULTS, load_metadata
from whet.rollouts.generate import get_results_path, runs_name, settings_that_differ
from whet.rollouts.row_log import load_outputs


def write_temp_file(content: str, suffix: str = ".txt") -> str:
    """The path of a new temporary file with this content; the caller deletes it."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=suffix, delete=False) as file:
        file.write(content)
    return file.name


def get_eval_results_path(config: Any) -> Path:
    """A new directory for an evaluation with `env_id`, `model`, `env_dir_path` and `output_dir`."""
    return get_results_path(
        config.env_id, config.model, _base(config.env_id, config.env_dir_path, getattr(config, "output_dir", None))
    )


def get_eval_runs_dir(
    env_id: str, model: str, env_dir_path: str = "./environments", output_dir: str | None = None
) -> Path:
    """The directory that holds all evaluations of a model on an environment."""
    return _base(env_id, env_dir_path, output_dir) / "evals" / runs_name(env_id, model)


def get_gepa_results_path(
    env_id: str, model: str, env_dir_path: str = "./environments", output_dir: str | None = None
) -> Path:
    """A new directory for a prompt search."""
    return get_results_path(env_id, model, _base(env_id, env_dir_path, output_dir), subdir="gepa")


def is_valid_eval_results_path(path: Path) -> bool:
    """Whether a directory holds rows and metadata."""
    return (path / RESULTS).is_file() and (path / METADATA).is_file()


def find_latest_incomplete_eval_results_path(
    env_id: str,
    model: str,
    num_examples: int,
    rollouts_per_example: int,
    env_dir_path: str = "./environments",
    output_dir: str | None = None,
) -> Path | None:
    """The newest evaluation with these settings that has fewer rows than requested; None where there is none."""
    runs = get_eval_runs_dir(env_id, model, env_dir_path, output_dir)
    incomplete = [path for path in runs.glob("*") if is_valid_eval_results_path(path)]
    for path in sorted(incomplete, key=lambda one: one.stat().st_mtime, reverse=True):
        try:
            saved, rows = load_metadata(path) or {}, len(load_outputs(path))
        except RunError:
            continue
        if rows < num_examples * rollouts_per_example and not settings_that_differ(
            saved, env_id, model, num_examples, rollouts_per_example
        ):
            return path
    return None


def _base(env_id: str, env_dir_path: str, output_dir: str | None) -> Path:
    if output_dir is not None:
        return Path(output_dir)
    local = Path(env_dir_path) / env_id.replace("-", "_")
    return local / "outputs" if local.exists() else Path("outputs")
