"""`verifiers.utils.save_utils` and `path_utils`: result rows and metadata, built and stored one by one, and where.

`Environment.generate` does all of this itself; these are for code that runs rollouts by hand, as trainers do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from whet.errors import ConfigError, RunError
from whet.records.directory import METADATA, RESULTS, load_metadata
from whet.rollouts import results
from whet.rollouts.generate import get_results_path, runs_name, settings_that_differ
from whet.rollouts.results import not_json, state_to_output
from whet.rollouts.row_log import append_rows, load_outputs
from whet.types import RolloutOutput, State


def is_json_serializable(value: object) -> bool:
    """Whether a row can hold the value; models, dates, paths and exceptions are stored as text or dicts."""
    return not_json(value) is None


def make_serializable(value: object) -> Any:
    """`default=` of `json.dumps`: models as dicts, dates and paths and exceptions as text, anything else as `str`."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_none=True)
    if isinstance(value, date):  # a datetime too
        return value.isoformat()
    if isinstance(value, BaseException):
        return repr(value)
    if isinstance(value, Path):
        return value.as_posix()
    return dict(value) if isinstance(value, Mapping) else str(value)


def states_to_outputs(states: Sequence[State], state_columns: Sequence[str] | None = None) -> list[RolloutOutput]:
    """The rows of rollouts."""
    return [state_to_output(state, state_columns) for state in states]


def make_dataset(results: Mapping[str, Any]) -> Any:
    """The rows of `generate` or `evaluate` as a `datasets.Dataset`."""
    from datasets import Dataset

    return Dataset.from_list([dict(row) for row in results["outputs"]])


def save_outputs(outputs: Sequence[RolloutOutput], results_path: Path, mode: str = "w") -> None:
    """Write rows to `results.jsonl`, over what is there or, with mode "a", after it."""
    if mode == "w":
        (Path(results_path) / RESULTS).unlink(missing_ok=True)
    append_rows(Path(results_path), outputs)


def save_new_outputs(new_outputs: Sequence[RolloutOutput], results_path: Path) -> None:
    """Append rows; a torn last line, which a killed process leaves, is dropped first."""
    save_outputs(new_outputs, results_path, mode="a")


def sanitize_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata without what differs between machines: the directory and the date."""
    return {name: value for name, value in metadata.items() if name not in ("path_to_save", "date")}


def save_metadata(metadata: Mapping[str, Any], result_path: Path) -> None:
    results.save_metadata(Path(result_path), sanitize_metadata(metadata))


def validate_resume_metadata(
    results_path: Path, env_id: str, model: str, num_examples: int, rollouts_per_example: int
) -> None:
    """Raise `ConfigError` where the results of `results_path` have other settings, or more examples."""
    saved = load_metadata(Path(results_path)) or {}
    wrong = settings_that_differ(saved, env_id, model, num_examples, rollouts_per_example)
    if wrong:
        raise ConfigError(
            f"{Path(results_path) / METADATA}: metadata mismatch: {'; '.join(wrong)}. "
            "Give the same settings, or another results_path."
        )


def push_results_to_hf_hub(results: Mapping[str, Any], dataset_name: str | None = None) -> None:
    """Upload the rows as a dataset of the Hugging Face hub, with the account that is logged in on this machine."""
    make_dataset(results).push_to_hub(dataset_name or get_hf_hub_dataset_name(results))


def get_hf_hub_dataset_name(outputs: Mapping[str, Any]) -> str:
    """`ENV_MODEL_nEXAMPLES_rROLLOUTS`."""
    metadata: dict[str, Any] = outputs["metadata"]
    model = metadata["model"].replace("/", "_")
    return f"{metadata['env_id']}_{model}_n{metadata['num_examples']}_r{metadata['rollouts_per_example']}"


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
