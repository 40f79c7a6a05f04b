"""What was begun and what has finished is on disk, and is read again whatever a kill has left of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import date
from pathlib import Path
from typing import TypeVar

import pytest

from whet.errors import GepaError, RunError
from whet.gepa.calls.call_log import CallLog, cost_of_row, scored
from whet.gepa.types import RolloutCall, Scored
from whet.records.directory import CALLS
from whet.rollouts.row_log import load_outputs

T = TypeVar("T")
CALL = RolloutCall("abc", "val/sim/0", 0)
ROW = {"reward": 0.5, "error": None, "metrics": {"exact": 0.5}, "example_id": 17}


def using(directory: Path, work: Callable[[CallLog], Awaitable[T]]) -> T:
    async def with_log() -> T:
        log = CallLog(directory)
        try:
            return await work(log)
        finally:
            log.close()

    return asyncio.run(with_log())  # type: ignore[arg-type]


async def nothing(log: CallLog) -> CallLog:
    return log


async def begin_and_finish(log: CallLog) -> None:
    await log.begin(CALL.key, "baseline", 0.25)
    log.finish(CALL, ROW)
    await log.flush()


def test_a_key_is_on_the_disk_before_its_call_begins(tmp_path: Path) -> None:
    async def begin(log: CallLog) -> str:
        await log.begin(CALL.key, "race", 1.5)
        return (tmp_path / CALLS).read_text()

    assert json.loads(using(tmp_path, begin)) == {"begin": ["abc/val/sim/0/0"], "phase": "race", "cost": 1.5}


def test_calls_that_begin_at_the_same_moment_share_a_line(tmp_path: Path) -> None:
    async def begin(log: CallLog) -> None:
        await asyncio.gather(*(log.begin(f"a/val/sim/{number}/0", "race") for number in range(50)))

    using(tmp_path, begin)
    lines = [json.loads(line) for line in (tmp_path / CALLS).read_text().splitlines()]
    assert len(lines) <= 3
    assert sorted(key for line in lines for key in line["begin"]) == sorted(f"a/val/sim/{n}/0" for n in range(50))


def test_a_finished_call_answers_in_the_next_process(tmp_path: Path) -> None:
    using(tmp_path, begin_and_finish)
    log = using(tmp_path, nothing)
    assert CALL.key in log
    assert log.begun[CALL.key] == 1
    assert log.cost == 0.25
    found = log.answer(CALL)
    assert (found.reward, found.error, found.row["metrics"]) == (0.5, None, {"exact": 0.5})


def test_a_search_hears_what_the_next_process_will_read(tmp_path: Path) -> None:
    row = {**ROW, "reward": float("nan"), "when": date(2026, 1, 2), "places": (1, 2)}

    async def finish(log: CallLog) -> Scored:
        return log.finish(CALL, row)

    heard = using(tmp_path, finish)
    assert heard == using(tmp_path, nothing).answer(CALL)
    assert (heard.reward, heard.row["when"], heard.row["places"]) == (0.0, "2026-01-02", [1, 2])


def test_a_call_that_was_begun_and_has_no_row_is_lost(tmp_path: Path) -> None:
    using(tmp_path, lambda log: log.begin(CALL.key, "baseline"))
    log = using(tmp_path, nothing)
    assert CALL.key not in log
    assert log.begun[CALL.key] == 1


def test_lines_that_a_kill_has_torn_are_as_if_they_had_not_been(tmp_path: Path) -> None:
    using(tmp_path, begin_and_finish)
    for name in (CALLS, "rollouts/results.jsonl"):
        with (tmp_path / name).open("ab") as file:
            file.write(b'{"begin": ["abc/val/sim/1/0"], "cand')
    log = using(tmp_path, nothing)
    assert dict(log.begun) == {CALL.key: 1}
    assert CALL.key in log


def test_a_row_without_its_line_in_the_other_file_counts_as_begun(tmp_path: Path) -> None:
    using(tmp_path, begin_and_finish)
    (tmp_path / CALLS).unlink()
    assert using(tmp_path, nothing).begun[CALL.key] == 1


def test_rows_are_those_of_evaluations_with_the_call_beside(tmp_path: Path) -> None:
    async def twice(log: CallLog) -> None:
        log.finish(CALL, ROW)
        log.finish(RolloutCall("def", CALL.example, 0), ROW)

    using(tmp_path, twice)
    using(tmp_path, begin_and_finish)
    rows = load_outputs(tmp_path / "rollouts")
    assert [(row["example_id"], row["rollout"], row["candidate"], row["sample"]) for row in rows] == [
        ("val/sim/0", 0, "abc", 0),
        ("val/sim/0", 1, "def", 0),
        ("val/sim/0", 2, "abc", 0),
    ]


def test_calls_of_the_final_comparison_are_told_apart(tmp_path: Path) -> None:
    async def begin(log: CallLog) -> None:
        await asyncio.gather(log.begin("a/held_out/sim/0/0", "confirmation"), log.begin("a/val/sim/0/0", "race"))

    using(tmp_path, begin)
    assert using(tmp_path, nothing).confirming == 1


def test_a_line_that_no_run_has_written_is_named(tmp_path: Path) -> None:
    (tmp_path / CALLS).write_text('{"step": 1}\n')
    with pytest.raises(GepaError, match=r"calls\.jsonl, line 1"):
        using(tmp_path, nothing)


def test_a_row_that_is_no_call_is_named(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "results.jsonl").write_text('{"reward": 1.0}\n')
    with pytest.raises(RunError, match="at byte 0 is no call of this search"):
        using(tmp_path, nothing)


def test_what_failed_counts_as_nothing_and_says_why() -> None:
    error = {"error": "EnvError", "error_chain_repr": "EnvError('no such room')"}
    found = scored(CALL, {"reward": None, "error": error})
    assert (found.reward, found.error) == (0.0, "EnvError('no such room')")


def test_the_cost_of_a_row_is_that_of_rollout_and_judges() -> None:
    assert cost_of_row({"token_usage": {"cost": 0.1}, "judge_usage": {"cost": 0.2}}) == pytest.approx(0.3)
    assert cost_of_row({"token_usage": {"input_tokens": 3.0}}) is None
