"""`candidates.jsonl` and `pareto_frontier.jsonl`: a search's candidates, and which is best on which example.

candidates.jsonl        a line for each candidate that was decided on, the seed first, with its parents: the lineage
pareto_frontier.jsonl   a line for each validation example: the best reward there, and the candidates that have it

Both are updated with every decision and always hold whole lines. A resumed search repeats its decisions from the first
one; what is on disk stays until the search has come as far again, and no line appears twice. Both can be rebuilt from
the log of calls (`calls/call_log.py`), so they can be deleted.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from whet.errors import RunError
from whet.gepa.types import CandidateRecord, SearchObserver
from whet.records.directory import CANDIDATES
from whet.system.files import json_line, read_lines, write_whole

logger = logging.getLogger(__name__)

FRONTIER = "pareto_frontier.jsonl"


@dataclass(frozen=True, slots=True)
class Frontier:
    """The best there is for one validation example: a line of `pareto_frontier.jsonl`."""

    example: str  # Example.key
    reward: float
    candidates: list[str]  # ids of the candidates that have this reward
    numbers: list[int]  # ... and their numbers


class CandidateWriter(SearchObserver):
    """An observer that writes both files into a run's directory.

    A file that cannot be read is rebuilt: a resumed search repeats all its decisions. A failed write does not end the
    search; it is logged once and repeated with the next decision.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._decided: set[int] = set()  # candidates of this process
        self._failed = False  # whether the last write did
        try:
            self._records = {record.number: record for record in read_candidates(directory)}
        except RunError:
            self._records = {}

    def decided(self, record: CandidateRecord) -> None:
        number = record.number
        self._decided.add(number)
        if number in self._records and self._records[number] != record:
            # A search that takes another way than the one on disk leaves nothing of that one after the fork.
            self._records = {
                other: one for other, one in self._records.items() if other < number or other in self._decided
            }
        self._records[number] = dataclasses.replace(record)
        self._write()

    def _write(self) -> None:
        records = [record for _, record in sorted(self._records.items())]
        try:
            write_whole(self._directory / CANDIDATES, _lines(records))
            write_whole(self._directory / FRONTIER, _lines(frontier(records)))
        except OSError as error:
            if not self._failed:
                logger.warning("%s: cannot write (%s); the search continues", error.filename, error.strerror or error)
            self._failed = True
        else:
            self._failed = False

    def close(self) -> None:
        """Write what could not be written so far."""
        if self._failed:
            self._write()


def frontier(records: Iterable[CandidateRecord]) -> list[Frontier]:
    """Who is best on each validation example, among the seed and what was accepted; in the order of the examples."""
    best: dict[str, tuple[float, list[CandidateRecord]]] = {}
    for record in records:
        if record.verdict == "rejected":
            continue
        for example, reward in record.val_rewards.items():
            highest, holders = best.setdefault(example, (reward, []))
            if reward > highest:
                best[example] = reward, [record]
            elif reward == highest:
                holders.append(record)
    return [
        Frontier(example, reward, [one.id for one in holders], [one.number for one in holders])
        for example, (reward, holders) in sorted(best.items(), key=lambda item: example_order(item[0]))
    ]


def by_id(records: Sequence[CandidateRecord]) -> dict[str, CandidateRecord]:
    """Candidates by their ids. Texts may be proposed again; then it is the one that was accepted, or the last."""
    return {one.id: one for one in sorted(records, key=lambda one: (one.verdict != "rejected", one.number))}


def example_order(key: str) -> tuple[str, int, str]:
    """Sorts examples by their keys: `val/reverse-text/9` before `val/reverse-text/10`."""
    folder, _, number = key.rpartition("/")
    return (folder, int(number), "") if number.isdecimal() else (key, 0, "")


def read_candidates(directory: Path) -> list[CandidateRecord]:
    """The candidates of a run by their numbers; none where the search has not decided on any.

    Raises `RunError` naming the line that is not one.
    """
    path = directory / CANDIDATES
    if not path.is_file():
        return []
    records: dict[int, CandidateRecord] = {}
    for line, row in enumerate(read_lines(path), start=1):
        try:
            record = _candidates().validate_python(row)
        except ValidationError as error:
            raise _damaged(path, line, _first(error), directory) from None
        if record.number in records:
            raise _damaged(path, line, f"candidate {record.number} is there twice", directory)
        records[record.number] = record
    return [records[number] for number in sorted(records)]


@cache
def _candidates() -> TypeAdapter[CandidateRecord]:
    return TypeAdapter(CandidateRecord)


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, in a few words."""
    first: Mapping[str, Any] = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {str(first['msg'])[:1].lower()}{str(first['msg'])[1:]}"


def _damaged(path: Path, line: int, what: str, directory: Path) -> RunError:
    return RunError(
        f"{path}, line {line}: not a candidate ({what}). Remove the file; "
        f"`whet gepa run --resume {directory}` writes it again from the log of calls."
    )


def _lines(records: Iterable[CandidateRecord | Frontier]) -> str:
    return "".join(json_line(dataclasses.asdict(record)) for record in records)
