"""The rows of a saved evaluation one at a time, so that a large one is never in memory as a whole.

They are those of `load_outputs`: without a torn last line, and of two rows for one attempt the later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from whet.errors import RunError
from whet.records.directory import METADATA, RESULTS, load_metadata
from whet.rollouts.results import row_key
from whet.system.files import read_lines
from whet.types import RolloutOutput

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
