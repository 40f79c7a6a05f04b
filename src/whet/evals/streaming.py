"""The rows of a saved evaluation one at a time, for whoever must not hold a large one in memory.

They are those of `load_outputs`: without a torn last line, and of two rows for one attempt the later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from whet.errors import RunError
from whet.files import read_lines
from whet.rollouts.results import METADATA, RESULTS, load_metadata, row_key
from whet.types import RolloutOutput


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
    if "example_id" not in row:
        raise RunError(f"{where}: not a rollout of an evaluation: it has no example_id.")
    output = RolloutOutput({"metrics": {}, "is_truncated": False, **row})
    if not isinstance(output["metrics"], Mapping):
        output["metrics"] = {}
    if isinstance(output.get("error"), str):  # as some writers have it
        output["error"] = {"error": output["error"], "error_chain_repr": output["error"]}
    reward = row.get("reward")
    if output.get("error") is None and not (isinstance(reward, int | float) and math.isfinite(reward)):
        raise RunError(f"{where}: the rollout has neither an error nor a reward that is a number.")
    return output
