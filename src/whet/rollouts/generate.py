"""Run many groups: `generate` for `Environment.generate` and `evaluate`.

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
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from whet import __version__
from whet.clients.client import Client
from whet.clients.make import made_from_config, resolve_client
from whet.errors import ConfigError, RunError
from whet.records.directory import load_metadata
from whet.rollouts.driver import Driver
from whet.rollouts.groups import run_group
from whet.rollouts.limits import rollout_limit
from whet.rollouts.results import ANOTHER_PATH, load_outputs, load_rows, row_line, save_metadata, state_to_output
from whet.rollouts.row_log import SECONDS_AT_MOST, RowLog
from whet.rollouts.totals import Totals
from whet.system.redaction import redacted
from whet.types import GenerateMetadata, GenerateOutputs, RolloutInput, RolloutOutput, SamplingArgs

AnyClient = Client[Any, Any, Any, Any]
OnStart = Callable[[list[RolloutInput], list[Any]], Any]
OnProgress = Callable[[list[RolloutOutput], list[RolloutOutput], GenerateMetadata], Any]
OnLog = Callable[[str], Any]
T = TypeVar("T")

METADATA_SECONDS = 1.0  # between two writes of metadata.json during the run


async def generate(
    env: Any,
    inputs: Any,
    client: Any,
    model: str,
    sampling_args: SamplingArgs | None = None,
    *,
    max_concurrent: int = -1,
    results_path: Path | str | None = None,
    state_columns: list[str] | None = None,
    save_results: bool = False,
    independent_scoring: bool = False,
    max_retries: int = 0,
    on_start: OnStart | None = None,
    on_progress: OnProgress | Sequence[OnProgress] | None = None,
    on_log: OnLog | None = None,
) -> GenerateOutputs:
    """See `Environment.generate`."""
    # Not copied here: every rollout copies its own row.
    rows: list[RolloutInput] = list(inputs) if isinstance(inputs, Sequence) else inputs.to_list()
    for index, row in enumerate(rows):
        if "prompt" not in row or "example_id" not in row:
            raise ConfigError(f"input {index} has no prompt or no example_id; take inputs from env.get_dataset().")
    resolved = resolve_client(client)
    args: SamplingArgs = {**env.sampling_args, **(sampling_args or {})}
    run = _Run(env, rows, model, args, resolved, state_columns or [])
    saving = save_results or results_path is not None
    directory = Path(results_path) if results_path is not None else _new_directory(env.env_id, model)
    try:
        if saving:
            run.open(directory)
            if on_log is not None:
                on_log(f"saving results to {directory}")
        remaining = _remaining(rows, run.outputs)
        groups = [[row] for row in remaining] if independent_scoring else _groups(remaining)
        if on_start is not None:
            on_start(rows, remaining if independent_scoring else groups)
        observers = [on_progress] if callable(on_progress) else list(on_progress or [])
        await run.attempt(groups, max_concurrent, independent_scoring, max_retries, observers)
        return await run.finish()
    finally:
        run.close()
        if made_from_config(client):
            await resolved.close()


class _Run:
    def __init__(
        self,
        env: Any,
        rows: list[RolloutInput],
        model: str,
        sampling_args: SamplingArgs,
        client: AnyClient,
        state_columns: list[str],
    ) -> None:
        self.env = env
        self.model = model
        self.sampling_args = sampling_args
        self.client = client
        self.state_columns = state_columns
        self.num_examples = len({row["example_id"] for row in rows})
        self.rollouts_per_example = len(rows) // self.num_examples if rows else 0
        self.totals = Totals(self.rollouts_per_example, env.pass_threshold)
        self.outputs: list[RolloutOutput] = []
        self.tools: dict[str, list[Any]] = {}
        self.log: RowLog | None = None
        self.offsets: list[int] = []  # of the rows of `outputs` in the log
        self.started = time.time()
        self.metadata_written = 0.0

    def open(self, directory: Path) -> None:
        """Write results to `directory`, after those that are there already."""
        metadata = load_metadata(directory)
        if metadata is not None:
            self._check_continues(directory, metadata)
            rows = load_rows(directory)
            self.offsets = [offset for offset, _ in rows]
            self._add([row for _, row in rows])
        elif load_outputs(directory):
            raise RunError(f"{directory} holds results without metadata.json. Give a new results_path.")
        # Written at once, which survives a kill; a loss of power may cost the rows of half a second.
        self.log = RowLog(directory, seconds=0.0, synced_s=SECONDS_AT_MOST, hint=ANOTHER_PATH)
        self._write_metadata()

    async def attempt(
        self,
        groups: list[list[RolloutInput]],
        max_concurrent: int,
        independent_scoring: bool,
        max_retries: int,
        observers: Sequence[OnProgress],
    ) -> None:
        limit = rollout_limit(max_concurrent)

        async def one(group: list[RolloutInput]) -> None:
            states = await run_group(
                self.env,
                group,
                self.client,
                self.model,
                self.sampling_args,
                limit=limit,
                independent_scoring=independent_scoring,
                max_retries=max_retries,
            )
            outputs = [state_to_output(state, self.state_columns) for state in states]
            self._add(outputs)
            if self.log is not None:
                self.offsets += self.log.append([row_line(output).encode() for output in outputs])
                if time.time() - self.metadata_written > METADATA_SECONDS:
                    self._write_metadata()
            if observers:
                metadata = self.metadata()
                for observer in observers:
                    observer(self.outputs, outputs, metadata)

        async with Driver(pace=True, calm=True) as driver:
            for group in groups:
                await driver.begin(one(group), limit)
            await driver.drain()

    async def finish(self) -> GenerateOutputs:
        """All rows by `example_id`, and the metadata; written once more, in that order."""
        order = sorted(range(len(self.outputs)), key=lambda index: self.outputs[index]["example_id"])
        if self.log is not None:
            await asyncio.to_thread(self.log.sort, [self.offsets[index] for index in order])
            self._write_metadata()
        return {"outputs": [self.outputs[index] for index in order], "metadata": self.metadata()}

    def close(self) -> None:
        if self.log is not None:
            self.log.close()

    def _write_metadata(self) -> None:
        assert self.log is not None
        save_metadata(self.log.path.parent, self.metadata())
        self.metadata_written = time.time()

    def metadata(self) -> GenerateMetadata:
        return metadata_of(
            self.totals,
            self.tools,
            self.started,
            env_id=self.env.env_id,
            env_args=self.env.env_args,
            model=self.model,
            base_url=_base_url(self.client),
            num_examples=self.num_examples,
            rollouts_per_example=self.rollouts_per_example,
            sampling_args=self.sampling_args,
            pass_threshold=self.env.pass_threshold,
            state_columns=self.state_columns,
            path_to_save=None if self.log is None else str(self.log.path.parent),
        )

    def _add(self, outputs: list[RolloutOutput]) -> None:
        self.outputs.extend(outputs)
        self.totals.add(outputs)
        for output in outputs:
            tools = output.get("tool_defs") or []
            self.tools.setdefault(",".join(sorted(tool["name"] for tool in tools)), tools)

    def _check_continues(self, directory: Path, saved_metadata: dict[str, Any]) -> None:
        now = {"env_id": self.env.env_id, "model": self.model, "rollouts_per_example": self.rollouts_per_example}
        for field, value in now.items():
            if saved_metadata.get(field) != value:
                raise RunError(
                    f"{directory} holds results with {field} = {saved_metadata.get(field)!r}, and now it is {value!r}. "
                    "Give a new results_path, or the settings of those results."
                )
        saved = saved_metadata.get("num_examples")
        if isinstance(saved, int) and saved > self.num_examples:
            raise RunError(
                f"{directory} holds results of {saved} examples, and now there are {self.num_examples}. "
                "Give a new results_path, or at least as many examples."
            )


def metadata_of(totals: Totals, tools: Mapping[str, list[Any]], started: float, **fields: Any) -> GenerateMetadata:
    """The metadata of rollouts, without secrets.

    Args:
        totals: of their rows.
        tools: the lists of tools that the rows have, by any name for each.
        started: when they began, in seconds since the epoch.
        fields: the fields of `GenerateMetadata` that are settings.
    """
    metadata = {
        **fields,
        **totals.averages(),
        "date": datetime.now().isoformat(),
        "time": time.time() - started,
        "version_info": {"whet": __version__},
        "tools": next(iter(tools.values())) or None if len(tools) == 1 else None,
    }
    return cast(GenerateMetadata, redacted(metadata))


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


def _base_url(client: AnyClient) -> str:
    config = client.config
    return config.api_base_url if config is not None else str(getattr(client, "base_url", ""))


def _new_directory(env_id: str, model: str) -> Path:
    return Path("outputs") / "evals" / f"{env_id or 'env'}--{model.replace('/', '--')}" / uuid.uuid4().hex[:8]
