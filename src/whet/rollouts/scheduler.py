"""Run many groups: `generate` for `Environment.generate` and `evaluate`.

Groups start as permits become free rather than all at once, and rows are written as groups finish. `groups.py` runs a
group, `results.py` defines the rows.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from whet import __version__
from whet.clients.client import Client
from whet.clients.make import made_from_config, resolve_client
from whet.errors import ConfigError, RunError
from whet.rollouts.garbage import calm_collector
from whet.rollouts.groups import run_group
from whet.rollouts.limits import rollout_limit
from whet.rollouts.pace import Pace, paced
from whet.rollouts.results import ResultsFile, load_metadata, load_outputs, state_to_output
from whet.rollouts.totals import Totals
from whet.system.redaction import redacted
from whet.types import GenerateMetadata, GenerateOutputs, RolloutInput, RolloutOutput, SamplingArgs

AnyClient = Client[Any, Any, Any, Any]
OnStart = Callable[[list[RolloutInput], list[Any]], Any]
OnProgress = Callable[[list[RolloutOutput], list[RolloutOutput], GenerateMetadata], Any]
OnLog = Callable[[str], Any]
T = TypeVar("T")

BEGUN_AT_ONCE = 16  # groups started before yielding to the event loop
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
        async with calm_collector():
            with paced() as pace:
                await run.attempt(groups, pace, max_concurrent, independent_scoring, max_retries, observers)
        return await run.finish()
    finally:
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
        self.file: ResultsFile | None = None
        self.started = time.time()
        self.metadata_written = 0.0

    def open(self, directory: Path) -> None:
        """Write results to `directory`, after those that are there already."""
        found = load_metadata(directory)
        if found is not None:
            self._check_continues(directory, found)
            self._add(load_outputs(directory))
        elif load_outputs(directory):
            raise RunError(f"{directory} holds results without metadata.json. Give a new results_path.")
        self.file = ResultsFile(directory)
        self.file.write_metadata(self.metadata())

    async def attempt(
        self,
        groups: list[list[RolloutInput]],
        pace: Pace,
        max_concurrent: int,
        independent_scoring: bool,
        max_retries: int,
        observers: Sequence[OnProgress],
    ) -> None:
        limit = rollout_limit(max_concurrent)

        async def one(index: int) -> None:
            states = await run_group(
                self.env,
                groups[index],
                self.client,
                self.model,
                self.sampling_args,
                limit=limit,
                independent_scoring=independent_scoring,
                max_retries=max_retries,
            )
            outputs = [state_to_output(state, self.state_columns) for state in states]
            self._add(outputs)
            if self.file is not None:
                self.file.append(outputs)
                if time.time() - self.metadata_written > METADATA_SECONDS:
                    self.file.write_metadata(self.metadata())
                    self.metadata_written = time.time()
            if observers:
                metadata = self.metadata()
                for observer in observers:
                    observer(self.outputs, outputs, metadata)

        await _each(len(groups), one, pace, limit)

    async def finish(self) -> GenerateOutputs:
        """All rows by `example_id`, and the metadata; written once more, in that order."""
        outputs = sorted(self.outputs, key=lambda output: output["example_id"])
        metadata = self.metadata()
        if self.file is not None:
            await self.file.write_all(outputs)
            self.file.write_metadata(metadata)
        return {"outputs": outputs, "metadata": metadata}

    def metadata(self) -> GenerateMetadata:
        fields = {
            "env_id": self.env.env_id,
            "env_args": self.env.env_args,
            "model": self.model,
            "base_url": _base_url(self.client),
            "num_examples": self.num_examples,
            "rollouts_per_example": self.rollouts_per_example,
            "sampling_args": self.sampling_args,
            "date": datetime.now().isoformat(),
            "time": time.time() - self.started,
            **self.totals.averages(),
            "pass_threshold": self.env.pass_threshold,
            "version_info": {"whet": __version__},
            "state_columns": self.state_columns,
            "path_to_save": None if self.file is None else str(self.file.directory),
            "tools": next(iter(self.tools.values())) or None if len(self.tools) == 1 else None,
        }
        return cast(GenerateMetadata, redacted(fields))

    def _add(self, outputs: list[RolloutOutput]) -> None:
        self.outputs.extend(outputs)
        self.totals.add(outputs)
        for output in outputs:
            tools = output.get("tool_defs") or []
            self.tools.setdefault(",".join(sorted(tool["name"] for tool in tools)), tools)

    def _check_continues(self, directory: Path, found: dict[str, Any]) -> None:
        now = {"env_id": self.env.env_id, "model": self.model, "rollouts_per_example": self.rollouts_per_example}
        for field, value in now.items():
            if found.get(field) != value:
                raise RunError(
                    f"{directory} holds results with {field} = {found.get(field)!r}, and now it is {value!r}. "
                    "Give a new results_path, or the settings of those results."
                )
        saved = found.get("num_examples")
        if isinstance(saved, int) and saved > self.num_examples:
            raise RunError(
                f"{directory} holds results of {saved} examples, and now there are {self.num_examples}. "
                "Give a new results_path, or at least as many examples."
            )


async def _each(
    count: int, work: Callable[[int], Coroutine[Any, Any, None]], pace: Pace, limit: asyncio.Semaphore | None
) -> None:
    """Run `work(0)` ... `work(count - 1)`, each begun when `limit` has a free permit; the first failure cancels all."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for index in range(count):
                if limit is not None:
                    async with limit:  # in line behind the rollouts of the groups begun before
                        pass
                tasks.create_task(work(index))
                if index % BEGUN_AT_ONCE == 0:
                    await (pace.turn() if pace.spent() else asyncio.sleep(0))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures.exceptions[0].__cause__


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, on an event loop of its own; in a thread where one runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    results: list[T] = []
    failures: list[BaseException] = []

    def in_thread() -> None:
        try:
            results.append(asyncio.run(work))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=in_thread, name="whet-run-sync")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


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
