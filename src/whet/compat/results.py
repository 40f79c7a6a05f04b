"""`verifiers.utils.save_utils`: result rows and metadata, built and stored one by one.

`Environment.generate` does all of this itself; these are for code that runs rollouts by hand, as trainers do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from whet.errors import ConfigError
from whet.records.directory import METADATA, RESULTS, load_metadata
from whet.rollouts import results
from whet.rollouts.generate import settings_that_differ
from whet.rollouts.results import not_json, state_to_output
from whet.rollouts.row_log import append_rows
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
