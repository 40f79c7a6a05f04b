"""Run many groups: what `Environment.generate` and `evaluate` do.

Groups start as permits become free rather than all at once, and rows are written as groups finish. `groups.py` runs a
group, `driver.py` many of them, `row_log.py` writes the rows, `results.py` defines them.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from whet import __version__
from whet.errors import ConfigError, RunError
from whet.records.directory import load_metadata
from whet.rollouts.driver import Driver
from whet.rollouts.groups import run_group
from whet.rollouts.limits import rollout_limit
from whet.rollouts.results import ANOTHER_PATH, row_line, save_metadata, state_to_output
from whet.rollouts.row_log import SECONDS_AT_MOST, RowLog, load_rows
from whet.rollouts.totals import Totals
from whet.system.redaction import redacted
from whet.types import GenerateMetadata, GenerateOutputs, RolloutInput, RolloutOutput, SamplingArgs

OnStart = Callable[[list[RolloutInput], list[Any]], Any]
OnProgress = Callable[[list[RolloutOutput], list[RolloutOutput], GenerateMetadata], Any]
OnLog = Callable[[str], Any]
T = TypeVar("T")

METADATA_SECONDS = 1.0  # between two writes of metadata.json during the run


def read_inputs(inputs: Any) -> list[RolloutInput]:
    """The rows of a dataset or a list, not copied: every rollout copies its own. Raises `ConfigError`."""
    rows: list[RolloutInput] = list(inputs) if isinstance(inputs, Sequence) else inputs.to_list()
    for index, row in enumerate(rows):
        if "prompt" not in row or "example_id" not in row:
            raise ConfigError(f"input {index} has no prompt or no example_id; take inputs from env.get_dataset().")
    return rows


class GenerateRun:
    """One call of `Environment.generate`: its record, and its directory."""

    def __init__(
        self,
        env: Any,
        rows: list[RolloutInput],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None,
        state_columns: list[str] | None,
        results_path: Path | str | None,
        saving: bool,
    ) -> None:
        examples = len({row["example_id"] for row in rows})
        each = len(rows) // examples if rows else 0
        args: SamplingArgs = {**env.sampling_args, **(sampling_args or {})}
        self.env, self.rows = env, rows
        self.builder = GenerateOutputsBuilder(
            *(env.env_id, env.env_args, model, client, examples, each),
            *(state_columns, args, results_path, env.pass_threshold, saving),
        )
        self.log: RowLog | None = None
        self.offsets: list[int] = []  # of the builder's rows in the log
        self.metadata_written = 0.0

    def open(self, on_log: OnLog | None) -> None:
        """Where results are saved: write them to their directory, after those that are there already."""
        if not self.builder.saving:
            return
        directory = self.builder.results_path
        metadata = load_metadata(directory)
        if metadata is not None:
            now = self.builder
            wrong = settings_that_differ(metadata, now.env_id, now.model, now.num_examples, now.rollouts_per_example)
            if wrong:
                raise RunError(
                    f"{directory} holds other results: {'; '.join(wrong)}. "
                    "Give a new results_path, or the settings of those results."
                )
            rows = load_rows(directory)
            self.offsets = [offset for offset, _ in rows]
            self.builder.add_outputs([row for _, row in rows])
        elif load_rows(directory):
            raise RunError(f"{directory} holds results without metadata.json. Give a new results_path.")
        # Written at once, which survives a kill; a loss of power may cost the rows of half a second.
        self.log = RowLog(directory, seconds=0.0, synced_s=SECONDS_AT_MOST, hint=ANOTHER_PATH)
        self._write_metadata()
        if on_log is not None:
            on_log(f"saving results to {directory}")

    async def attempt(
        self,
        max_concurrent: int,
        independent_scoring: bool,
        max_retries: int,
        on_start: OnStart | None,
        on_progress: OnProgress | Sequence[OnProgress] | None,
    ) -> None:
        remaining = _remaining(self.rows, self.builder.outputs)
        groups = [[row] for row in remaining] if independent_scoring else _groups(remaining)
        if on_start is not None:
            on_start(self.rows, remaining if independent_scoring else groups)
        observers = [on_progress] if callable(on_progress) else list(on_progress or [])
        limit = rollout_limit(max_concurrent)

        async def one(group: list[RolloutInput]) -> None:
            states = await run_group(
                self.env,
                group,
                self.builder.client,
                self.builder.model,
                self.builder.sampling_args,
                limit=limit,
                independent_scoring=independent_scoring,
                max_retries=max_retries,
            )
            outputs = [state_to_output(state, self.builder.state_columns) for state in states]
            self.builder.add_outputs(outputs)
            if self.log is not None:
                self.offsets += self.log.append([row_line(output).encode() for output in outputs])
                if time.time() - self.metadata_written > METADATA_SECONDS:
                    self._write_metadata()
            if observers:
                metadata = self.builder.build_metadata()
                for observer in observers:
                    observer(self.builder.outputs, outputs, metadata)

        async with Driver(pace=True, calm=True) as driver:
            for group in groups:
                await driver.begin(one(group), limit)
            await driver.drain()

    async def finish(self) -> GenerateOutputs:
        """All rows by `example_id`, and the metadata; written once more, in that order."""
        outputs = self.builder.outputs
        order = sorted(range(len(outputs)), key=lambda index: outputs[index]["example_id"])
        if self.log is not None:
            await asyncio.to_thread(self.log.sort, [self.offsets[index] for index in order])
            self._write_metadata()
        return {"outputs": [outputs[index] for index in order], "metadata": self.builder.build_metadata()}

    def close(self) -> None:
        if self.log is not None:
            self.log.close()

    def _write_metadata(self) -> None:
        assert self.log is not None
        save_metadata(self.log.path.parent, self.builder.build_metadata())
        self.metadata_written = time.time()


@dataclass
class GenerateOutputsBuilder:
    """The record of finished rollouts: their rows, and what their metadata is computed from."""

    env_id: str
    env_args: dict[str, Any]
    model: str
    client: Any
    num_examples: int
    rollouts_per_example: int
    state_columns: list[str] | None
    sampling_args: SamplingArgs
    results_path: Any  # a Path, or what makes one; None: a new one below outputs/
    pass_threshold: float = 0.5
    saving: bool = True

    def __post_init__(self) -> None:
        self.state_columns = self.state_columns or []
        given = self.results_path
        self.results_path = get_results_path(self.env_id, self.model) if given is None else Path(given)
        self.start_time, self.base_url = time.time(), _base_url(self.client)
        self.outputs: list[RolloutOutput] = []
        self._totals = Totals(self.rollouts_per_example, self.pass_threshold)
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
        """The metadata of the rows so far, without secrets."""
        settings = ("env_id", "env_args", "model", "base_url", "num_examples", "rollouts_per_example", "sampling_args")
        metadata = {
            **{name: getattr(self, name) for name in (*settings, "pass_threshold", "state_columns")},
            "path_to_save": str(self.results_path) if self.saving else None,
            **self._totals.averages(),
            "date": datetime.now().isoformat(),
            "time": time.time() - self.start_time,
            "version_info": {"whet": __version__},
            "tools": next(iter(self._tools.values())) or None if len(self._tools) == 1 else None,
        }
        return cast(GenerateMetadata, redacted(metadata))

    def build_outputs(self, sort_by_example_id: bool = False) -> list[RolloutOutput]:
        if not sort_by_example_id:
            return self.outputs
        return sorted(self.outputs, key=lambda output: int(output.get("example_id", 0)))

    def build(self, sort_by_example_id: bool = False) -> GenerateOutputs:
        return {"outputs": self.build_outputs(sort_by_example_id), "metadata": self.build_metadata()}


def settings_that_differ(
    saved: Mapping[str, Any], env_id: str, model: str, num_examples: int, rollouts_per_example: int
) -> list[str]:
    """How metadata differs from these settings. It may have fewer examples."""
    wanted = {"env_id": env_id, "model": model, "rollouts_per_example": rollouts_per_example}
    if not isinstance(saved.get("num_examples"), int) or saved["num_examples"] > num_examples:
        wanted["num_examples"] = num_examples
    return [
        f"{name} is {saved.get(name)!r} there and {value!r} now"
        for name, value in wanted.items()
        if saved.get(name) != value
    ]


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, on an event loop of its own; in a thread where one runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, thread_name_prefix="whet-run-sync") as thread:
        return thread.submit(asyncio.run, work).result()


def _remaining(rows: list[RolloutInput], outputs: list[RolloutOutput]) -> list[RolloutInput]:
    """The rows without those that have results already, counted by `example_id`."""
    done = Counter(output["example_id"] for output in outputs)
    remaining = []
    for row in rows:
        if done[row["example_id"]] > 0:
            done[row["example_id"]] -= 1
        else:
            remaining.append(row)
    return remaining


def _groups(rows: list[RolloutInput]) -> list[list[RolloutInput]]:
    groups: dict[int, list[RolloutInput]] = {}
    for row in rows:
        groups.setdefault(row["example_id"], []).append(row)
    return list(groups.values())


def _base_url(client: Any) -> str:
    """Of a client or its config: of each endpoint, where it has several."""
    config = client if hasattr(client, "spread") else getattr(client, "config", None)
    if config is None:
        return str(getattr(client, "base_url", ""))
    return ",".join(one.api_base_url for one in config.spread())


def _name_of_tool(tool: Any) -> str:
    function = tool.get("function")
    return str((function if isinstance(function, Mapping) else tool).get("name", ""))


def get_results_path(env_id: str, model: str, base_path: Path = Path("outputs"), subdir: str = "evals") -> Path:
    """A new directory below `base_path`, not yet made."""
    return Path(base_path) / subdir / runs_name(env_id, model) / uuid.uuid4().hex[:8]


def runs_name(env_id: str, model: str) -> str:
    """What the folder of the results of a model on an environment is called."""
    return f"{env_id or 'env'}--{model.replace('/', '--')}"
