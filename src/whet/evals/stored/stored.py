"""Evaluations on disk: listing and reading them, their summaries, and the command that resumes one.

Their format is in `rollouts/results.py`. Rows are read one at a time, so that a large evaluation is never in memory as
a whole; they are those of `load_outputs`: without a torn last line, and of two rows for one attempt the later.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from whet.envs.identity.record import identity_differences
from whet.errors import RunError
from whet.evals.analysis.summary import EvalSummary, SummaryBuilder, varied_of
from whet.evals.config import EvalConfig, command_words
from whet.records.directory import METADATA, RESULTS, load_metadata
from whet.records.lock import EvaluationState, evaluation_state
from whet.records.stored import as_far_as_possible, check_folder
from whet.rollouts.results import row_key
from whet.system.files import count_lines, read_lines
from whet.types import RolloutOutput

DEFAULT_FOLDER: Path = EvalConfig.model_fields["output_directory"].default


@dataclass(frozen=True, slots=True)
class StoredEval:
    """One evaluation: its directory, and what `metadata.json` says. Its rows are read on demand."""

    directory: Path
    metadata: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.metadata.get('env_id') or '?'} with {self.metadata.get('model') or '?'}"

    def environment_differences(self, other: StoredEval) -> list[str]:
        """How the environment of `other` differs from that of this one, a line each, where both recorded it."""
        first, second = self.metadata.get("environment"), other.metadata.get("environment")
        return identity_differences(first, second) if isinstance(first, dict) and isinstance(second, dict) else []

    def rows(self) -> Iterator[RolloutOutput]:
        """Its rows, one at a time. Raises `RunError`, naming the line, for what is no row of a rollout."""
        return stream_rows(self.directory)

    def summary(self) -> EvalSummary:
        """The summary that `whet eval run` printed at its end, computed again from the rows."""
        seconds = float(self.metadata.get("time") or 0.0)
        return SummaryBuilder.of(self.metadata).summarize(self.rows(), seconds=seconds, results=self.directory)


@dataclass(frozen=True, slots=True)
class StoredHead:
    """A line of the list of evaluations: everything but the rows."""

    directory: Path
    environment: str
    model: str
    date: str
    state: EvaluationState  # unfinished: no process runs it any more
    reward: float | None  # of the rollouts that were there when its metadata was last written
    rollouts: int  # planned
    done: int  # rollouts that are saved
    errors: int
    varied: dict[str, Any]  # what a sweep set, by name
    resume: str | None  # the command that continues it, where it did not end
    fault: str | None = None  # why it cannot be read


def open_stored(path: Path) -> StoredEval:
    """The evaluation in a directory, named by it or by its results file. Raises `RunError` where there is none."""
    directory = find_results(path)
    metadata = load_metadata(directory)
    if metadata is None:
        raise RunError(f"{directory} has no {METADATA}: the evaluation did not end. Its rows are in {RESULTS}.")
    return StoredEval(directory, metadata)


def list_stored(folder: Path = DEFAULT_FOLDER) -> list[StoredHead]:
    """The evaluations below a folder, newest first. Raises `RunError` where there is no such folder."""
    check_folder(folder, "whet eval", DEFAULT_FOLDER)
    heads = []
    for file in folder.rglob(METADATA):
        if (file.parent / RESULTS).is_file() and file.is_file():
            head = as_far_as_possible(file.parent, partial(_head_of, file.parent), partial(_damaged, file.parent))
            heads += [] if head is None else [head]
    return sorted(heads, key=lambda head: head.date, reverse=True)


def _head_of(directory: Path) -> StoredHead | None:
    metadata = load_metadata(directory)
    return _head(directory, metadata) if metadata is not None and "env_id" in metadata else None


def _damaged(directory: Path, why: str) -> StoredHead | None:
    return StoredHead(directory, directory.name, "", "", "unfinished", None, 0, 0, 0, {}, None, fault=why)


def _head(directory: Path, metadata: dict[str, Any]) -> StoredHead:
    reward = metadata.get("avg_reward")
    rollouts = int(metadata.get("num_examples") or 0) * int(metadata.get("rollouts_per_example") or 1)
    state = evaluation_state(directory, metadata)
    done = rollouts if state == "finished" else min(rollouts, count_lines(directory / RESULTS))
    errors = metadata.get("num_errors")
    return StoredHead(
        directory=directory,
        environment=str(metadata["env_id"]),
        model=str(metadata.get("model") or ""),
        date=str(metadata.get("date") or ""),
        state=state,
        reward=float(reward) if isinstance(reward, int | float) else None,
        rollouts=rollouts,
        done=done,
        errors=int(errors) if errors is not None else round(float(metadata.get("avg_error") or 0) * rollouts),
        varied=varied_of(metadata),
        resume=resume_command(metadata, directory) if state == "unfinished" else None,
    )


def resume_command(metadata: Mapping[str, Any], directory: Path) -> str | None:
    """`whet eval run ... --resume=DIRECTORY`; None where `metadata.json` does not say how it was run."""
    config = metadata.get("config")
    if not isinstance(config, Mapping) or not isinstance(config.get("environment"), str):
        return None
    return shlex.join([*command_words(config), f"--resume={directory}"])


LARGEST_REWARD = 1e100
"""What is beyond could not be squared for a variance, and is no sensible reward."""


def find_results(path: Path) -> Path:
    """The directory of an evaluation: named by itself or its results file, or the only one below a folder.

    Raises `RunError` where there is none, or a choice.
    """
    directory = path.parent if path.name in (RESULTS, METADATA) else path
    if (directory / RESULTS).is_file():
        return directory
    below = sorted(file.parent for file in directory.glob(f"**/{RESULTS}")) if directory.is_dir() else []
    if not below:
        raise RunError(f"{path}: there is no {RESULTS} here. `whet eval list` shows the evaluations there are.")
    if len(below) > 1:
        raise RunError(f"{path}: there are {len(below)} evaluations below it; name one of them, such as {below[0]}.")
    return below[0]


def stream_rows(directory: Path) -> Iterator[RolloutOutput]:
    """Rows in the order of the file. Raises `RunError`, naming the line, for what is no row of a rollout."""
    path = directory / RESULTS
    metadata = load_metadata(directory) or {}
    # A finished evaluation has each attempt once; of any other it takes a look ahead to know which row counts.
    last = {} if metadata.get("state") == "finished" else _last_rows(path)
    for number, row in enumerate(read_lines(path)):
        key = row_key(row)
        if key is None or last.get(key, number) == number:
            yield _checked(row, f"{path}, line {number + 1}")


def _last_rows(path: Path) -> dict[tuple[Any, int], int]:
    """The number of the row that counts, of every attempt that is there more than once."""
    seen: dict[tuple[Any, int], int] = {}
    twice: dict[tuple[Any, int], int] = {}
    for number, row in enumerate(read_lines(path)):
        if (key := row_key(row)) is not None:
            if key in seen:
                twice[key] = number
            seen[key] = number
    return twice


def _checked(row: dict[str, Any], where: str) -> RolloutOutput:
    """The row with what every rollout has, as far as its writer left it out."""
    if not isinstance(row.get("example_id"), int | str):
        raise RunError(f"{where}: not a rollout of an evaluation: it has no example_id that is a number or text.")
    output = RolloutOutput({"is_truncated": False, **row, "metrics": _numbers(row, "metrics", where)})
    if row.get("token_usage") is not None:
        output["token_usage"] = _numbers(row, "token_usage", where)
    if row.get("timing") is not None:
        output["timing"] = {**_mapping(row, "timing", where)}
        if output["timing"].get("generation") is not None:
            output["timing"]["generation"] = _numbers(output["timing"], "generation", where)
    error, reward = row.get("error"), row.get("reward")
    if error is not None:
        output["error"] = error if _is_error(error) else {"error": str(error), "error_chain_repr": str(error)}
    elif not (isinstance(reward, int | float) and abs(reward) <= LARGEST_REWARD):
        raise RunError(f"{where}: the rollout has neither an error nor a reward that is a number.")
    return output


def _is_error(error: Any) -> bool:
    return isinstance(error, Mapping) and isinstance(error.get("error"), str)


def _mapping(row: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    value = row[name]
    if not isinstance(value, Mapping):
        raise RunError(f"{where}: {name} should be an object, not {value!r:.60}.")
    return value


def _numbers(row: Mapping[str, Any], name: str, where: str) -> dict[str, float]:
    """The numbers of an object by name, without those that are null; none where the row has no such object."""
    if row.get(name) is None:
        return {}
    numbers = {}
    for key, value in _mapping(row, name, where).items():
        if value is not None:
            if not isinstance(value, int | float):
                raise RunError(f"{where}: {key!r:.60} of {name} is {value!r:.60}, not a number.")
            numbers[key] = value
    return numbers
