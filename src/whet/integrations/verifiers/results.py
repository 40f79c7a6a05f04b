"""`verifiers.utils.save_utils`: result rows and metadata, built and stored one by one.

`Environment.generate` does all of this itself; these are for code that runs rollouts by hand, as trainers do.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from whet.clients.config import ClientConfig
from whet.errors import ConfigError
from whet.integrations.verifiers.paths import get_results_path, settings_that_differ
from whet.records.directory import METADATA, RESULTS, load_metadata
from whet.rollouts import results
from whet.rollouts.generate import metadata_of
from whet.rollouts.results import not_json, state_to_output
from whet.rollouts.row_log import append_rows
from whet.rollouts.totals import Totals
from whet.types import GenerateMetadata, GenerateOutputs, RolloutOutput, State


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


class GenerateOutputsBuilder:
    """Collects rows and computes their metadata; averages leave errored rollouts out, as those of `evaluate` do."""

    def __init__(
        self,
        env_id: str,
        env_args: dict[str, Any],
        model: str,
        client: Any,
        num_examples: int,
        rollouts_per_example: int,
        state_columns: list[str] | None,
        sampling_args: dict[str, Any],
        results_path: Path | None,
        pass_threshold: float = 0.5,
    ) -> None:
        self.env_id = env_id
        self.env_args = env_args
        self.model = model
        self.client = client
        self.num_examples = num_examples
        self.rollouts_per_example = rollouts_per_example
        self.state_columns = state_columns or []
        self.sampling_args = sampling_args
        self.results_path = results_path or get_results_path(env_id, model)
        self.pass_threshold = pass_threshold
        self.start_time = time.time()
        self.base_url = _base_url(client)
        self.outputs: list[RolloutOutput] = []
        self._totals = Totals(rollouts_per_example, pass_threshold)
        self._tools: dict[str, list[Any]] = {}

    def add_outputs(self, new_outputs: Sequence[RolloutOutput]) -> None:
        self.outputs.extend(new_outputs)
        self._totals.add(new_outputs)
        for output in new_outputs:
            tools = output.get("tool_defs") or []
            self._tools.setdefault(self.tools_key(tools), tools)

    @staticmethod
    def tools_key(tools: Sequence[Any] | None) -> str:
        """The names of tools, in the order of the alphabet; the same for the same set of tools."""
        return str(sorted(map(_name_of_tool, tools))) if tools else ""

    def build_metadata(self) -> GenerateMetadata:
        settings = ("env_id", "env_args", "model", "base_url", "num_examples", "rollouts_per_example", "sampling_args")
        return metadata_of(
            self._totals,
            self._tools,
            self.start_time,
            **{name: getattr(self, name) for name in (*settings, "pass_threshold", "state_columns")},
            path_to_save=self.results_path,
        )

    def build_outputs(self, sort_by_example_id: bool = False) -> list[RolloutOutput]:
        if not sort_by_example_id:
            return self.outputs
        return sorted(self.outputs, key=lambda output: int(output.get("example_id", 0)))

    def build(self, sort_by_example_id: bool = False) -> GenerateOutputs:
        return {"outputs": self.build_outputs(sort_by_example_id), "metadata": self.build_metadata()}


def _base_url(client: Any) -> str:
    if isinstance(client, ClientConfig):
        return ",".join(config.api_base_url for config in client.spread())
    return str(getattr(client, "base_url", ""))


def _name_of_tool(tool: Any) -> str:
    function = tool.get("function")
    return str((function if isinstance(function, Mapping) else tool).get("name", ""))


def push_results_to_hf_hub(results: Mapping[str, Any], dataset_name: str | None = None) -> None:
    """Upload the rows as a dataset of the Hugging Face hub, with the account that is logged in on this machine."""
    make_dataset(results).push_to_hub(dataset_name or get_hf_hub_dataset_name(results))


def get_hf_hub_dataset_name(outputs: Mapping[str, Any]) -> str:
    """`ENV_MODEL_nEXAMPLES_rROLLOUTS`."""
    metadata: dict[str, Any] = outputs["metadata"]
    model = metadata["model"].replace("/", "_")
    return f"{metadata['env_id']}_{model}_n{metadata['num_examples']}_r{metadata['rollouts_per_example']}"
