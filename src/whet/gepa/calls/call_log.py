"""Calls on disk: which were begun, and what came of those that finished.

calls.jsonl               {"begin": ["<candidate>/<example>/<sample>", ...], "phase": ..., "cost": ...}
rollouts/results.jsonl    the rows of finished calls, as `whet eval run` writes them, and which call each was

A key is fsynced before its call is begun, a row before the search receives the result. Calls that are begun at the same
moment share an fsync. A row is written when its call has finished and shares its fsync with later ones, so that no call
has to wait for it. A call that was begun and has no row was lost with its process. A last line that a kill has torn is
cut off.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from whet.errors import GepaError, RunError
from whet.gepa.types import Phase, RolloutCall, Scored
from whet.records.directory import CALLS, RESULTS, ROLLOUTS
from whet.rollouts.results import row_line
from whet.rollouts.row_log import SECONDS_AT_MOST, RowLog, read_rows, row_at
from whet.system.files import LineFile, read_lines
from whet.types import RolloutOutput


class CallLog:
    """Both files of a run. One process at a time has them open; see `SearchDirectory`."""

    def __init__(self, directory: Path) -> None:
        """Open the logs in `directory`, and read what earlier processes left there.

        Raises `RunError` where they cannot be written, or hold what no run has written.
        """
        self._lines = LineFile(directory / CALLS)
        self.begun: Counter[str] = Counter()
        """How often each call was begun by earlier processes."""
        self.confirming = 0
        """How many of these belong to the final comparison."""
        self.cost = 0.0
        """Dollars that were spent when an earlier process last wrote here."""
        self._read_begun(directory / CALLS)
        (directory / ROLLOUTS).mkdir(parents=True, exist_ok=True)
        # A kill would lose what waits to be written; what waits for its fsync, only a loss of power.
        self._rows = RowLog(directory / ROLLOUTS, seconds=0.0, synced_s=SECONDS_AT_MOST)
        self._finished: dict[str, int] = {}
        self._numbers: Counter[str] = Counter()  # rows by example: which of its rollouts the next one is
        self.paid: list[float] = []
        """What the finished calls of earlier processes have cost, where that is known."""
        self._read_finished(directory / ROLLOUTS / RESULTS)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="whet calls begun")
        self._pending: list[dict[str, Any]] = []
        self._appended = self._durable = 0  # lines
        self._commit: asyncio.Future[None] | None = None

    def __contains__(self, key: str) -> bool:
        """Whether a call has finished."""
        return key in self._finished

    def answer(self, call: RolloutCall) -> Scored:
        """What came of a finished call."""
        with self._rows.path.open("rb") as file:
            row = json.loads(row_at(file, self._finished[call.key]))
        return scored(call, row)

    async def begin(self, key: str, phase: Phase, cost: float | None = None) -> None:
        """Write down that a call begins; returns once that would survive a loss of power."""
        self._pending.append({"begin": [key], "phase": phase, "cost": cost})
        self._appended += 1
        mine = self._appended
        while self._durable < mine:
            if self._commit is None:
                self._commit = asyncio.ensure_future(self._write_pending())
            await asyncio.shield(self._commit)

    async def _write_pending(self) -> None:
        taken, self._pending = self._pending, []
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._lines.append, _joined(taken))
            self._durable += len(taken)
        finally:
            self._commit = None

    def finish(self, call: RolloutCall, row: Mapping[str, Any]) -> Scored:
        """Append the row of a finished call; it is durable once `flush` has returned.

        Returns what a later process would read, so that a search does not depend on which process made the call.
        """
        number = self._numbers[call.example]
        self._numbers[call.example] += 1
        # `whet view` groups the rollouts of an example by these and numbers them by `rollout`.
        numbered = {**row, "example_id": call.example, "rollout": number}
        numbered |= {"candidate": call.candidate, "example": call.example, "sample": call.sample}
        line = row_line(RolloutOutput(numbered)).encode()
        self._finished[call.key] = self._rows.append([line])[0]
        return scored(call, json.loads(line))

    async def flush(self) -> None:
        """Returns once every row would survive a loss of power. Raises `RunError` where that cannot be."""
        await asyncio.get_running_loop().run_in_executor(self._writer, self._rows.flush)

    def close(self, cost: float | None = None) -> None:
        """Save what is pending, and what was spent."""
        self._writer.shutdown(wait=True)
        self._rows.close()
        if cost is not None:
            self._lines.append([{"begin": [], "cost": cost}])

    def _read_begun(self, path: Path) -> None:
        for number, line in enumerate(read_lines(path) if path.exists() else (), start=1):
            keys = line.get("begin")
            if not isinstance(keys, list):
                raise GepaError(f"{path}, line {number}: no call of a search. Remove the line, or begin a new run.")
            self.begun.update(map(str, keys))
            self.confirming += len(keys) if line.get("phase") == "confirmation" else 0
            self.cost = max(self.cost, float(line.get("cost") or 0.0))

    def _read_finished(self, path: Path) -> None:
        for offset, line in read_rows(path):
            try:
                row = json.loads(line)
                call = RolloutCall(str(row["candidate"]), str(row["example"]), int(row["sample"]))
            except (ValueError, KeyError, TypeError) as error:
                raise RunError(
                    f"{path}: the line at byte {offset} is no call of this search ({error!r}). Remove it, and resume."
                ) from None
            self._finished[call.key] = offset
            self._numbers[call.example] += 1
            self.begun[call.key] = max(1, self.begun[call.key])
            cost = cost_of_row(row)
            if cost is not None:
                self.paid.append(cost)


def scored(call: RolloutCall, row: Mapping[str, Any]) -> Scored:
    """A finished call by its row. What failed counts as 0."""
    error = row.get("error")
    reward = row.get("reward")
    said = None if error is None else str(error.get("error_chain_repr") or error.get("error"))
    return Scored(call, 0.0 if error is not None or reward is None else float(reward), said, row)


def cost_of_row(row: Mapping[str, Any]) -> float | None:
    """Dollars of a rollout and of those who judged it; None where no price is known."""
    known = [
        float(usage["cost"])
        for usage in (row.get("token_usage"), row.get("judge_usage"))
        if isinstance(usage, Mapping) and usage.get("cost") is not None
    ]
    return sum(known) if known else None


def _joined(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line for each phase."""
    phases: dict[Any, dict[str, Any]] = {}
    for line in lines:
        whole = phases.setdefault(line["phase"], {**line, "begin": []})
        whole["begin"] += line["begin"]
        whole["cost"] = line["cost"]
    return list(phases.values())
