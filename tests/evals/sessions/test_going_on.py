"""`--resume`: what is missing or failed is run, nothing else, and only in an evaluation that is the same."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whet.errors import RunError
from whet.records.lock import DirectoryLock


def without_timing(rows: list[Any]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "timing"} for row in rows]


@pytest.fixture
def done(room: Any) -> Any:
    """An evaluation that came to its end."""
    room.run(room.config())
    room.begun()
    return room


def test_what_is_complete_is_not_run_again(done: Any) -> None:
    before = done.rows()
    (summary,) = done.run(done.config(resume=done.directory()))
    assert done.begun() == []
    assert done.rows() == before
    assert (summary.rollouts, summary.reward.mean, done.seen.planned[0].kept) == (6, 1.0, 6)


def test_what_is_missing_is_run_and_gives_what_it_would_have_given(done: Any) -> None:
    before, path = done.rows(), done.directory() / "results.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[5], lines[0], lines[2]]))
    done.run(done.config(resume=done.directory()))
    assert done.begun() == [0, 1, 2]
    assert without_timing(done.rows()) == without_timing(before)
    assert done.metadata()["avg_reward"] == 1.0


def test_rows_that_are_kept_are_told_to_watchers_first(done: Any) -> None:
    path = done.directory() / "results.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[2:]))
    done.run(done.config(resume=done.directory()))
    assert done.seen.planned[0].kept == 4
    told = [(row["example_id"], row["rollout"]) for _, row in done.seen.rows]
    assert told == [(1, 0), (1, 1), (2, 0), (2, 1), (0, 0), (0, 1)]


def test_failed_rollouts_are_run_again_and_their_rows_replaced(room: Any) -> None:
    room.order("fail", 1)
    (before,) = room.run(room.config())
    assert (before.errors, len(room.rows())) == (2, 6)
    room.order("fail")
    room.begun()
    (after,) = room.run(room.config(resume=room.directory()))
    assert room.begun() == [1, 1]
    assert (after.errors, after.rollouts) == (0, 6)
    lines = (room.directory() / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["error"] for line in lines] == [None] * 6


def test_more_examples_and_more_rollouts_are_added(room: Any) -> None:
    room.run(room.config(num_examples=2, rollouts_per_example=1))
    room.begun()
    room.run(room.config(num_examples=3, rollouts_per_example=3, resume=room.directory()))
    assert sorted(room.begun()) == [0, 0, 1, 1, 2, 2, 2]
    assert [(row["example_id"], row["rollout"]) for row in room.rows()] == [(t, p) for t in range(3) for p in range(3)]
    assert (room.metadata()["num_examples"], room.metadata()["rollouts_per_example"]) == (3, 3)


def test_a_group_that_is_scored_together_is_run_again_as_a_whole(room: Any) -> None:
    config = room.config(env_args={"together": True})
    room.run(config)
    room.begun()
    path = room.directory() / "results.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    room.run(config.model_copy(update={"resume": room.directory()}))
    assert room.begun() == [1, 1, 2, 2]
    assert [row["share"] for row in room.rows()] == [0.5] * 6


def test_more_rollouts_of_a_group_that_is_scored_together_change_the_scores_of_all(room: Any) -> None:
    room.run(room.config(env_args={"together": True}))
    room.run(room.config(env_args={"together": True}, rollouts_per_example=4, resume=room.directory()))
    assert [row["share"] for row in room.rows()] == [0.25] * 12


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kept=st.floats(0, 1))
def test_a_file_cut_off_anywhere_is_completed(done: Any, kept: float) -> None:
    path = done.directory() / "results.jsonl"
    before, whole = done.rows(), path.read_bytes()
    os.truncate(path, int(len(whole) * kept))
    left = path.read_bytes().count(b"\n")
    done.begun()
    done.run(done.config(resume=done.directory()))
    assert without_timing(done.rows()) == without_timing(before)
    assert 5 - left <= len(done.begun()) <= 6 - left  # a line that lacks nothing but its end is whole, too


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "whet/other"}, "model: was 'whet/tiny', is 'whet/other'"),
        ({"temperature": 0.5}, "sampling_args.temperature: was 1.0, is 0.5"),
        ({"seed": 7}, "seed: was 0, is 7"),
        ({"shuffle": 1}, "shuffle: was None, is 1"),
        ({"env_args": {"tasks": 9}}, "env_args.tasks: was None, is 9"),
        ({"extra_env_kwargs": {"max_turns": 2}}, "extra_env_kwargs.max_turns: was None, is 2"),
        ({"state_columns": ("usage",)}, "state_columns: was [], is ['usage']"),
        ({"base_url": "http://127.0.0.1:9/v1"}, "model_runs: was 'here', is 'behind an endpoint'"),
        ({"num_examples": 2}, "num_examples (-n): was 3, is 2, and may only grow"),
        ({"rollouts_per_example": 1}, "rollouts_per_example (-r): was 2, is 1, and may only grow"),
    ],
)
def test_another_evaluation_is_refused_by_what_is_different(done: Any, fields: dict[str, Any], said: str) -> None:
    before = done.metadata()
    with pytest.raises(RunError) as refused:
        done.run(done.config(**fields, resume=done.directory()))
    assert said in str(refused.value)
    assert str(done.directory()) in str(refused.value)
    assert (done.begun(), done.metadata()) == ([], before)


def test_all_differences_are_named_at_once(done: Any) -> None:
    with pytest.raises(RunError) as refused:
        done.run(done.config(seed=7, temperature=0.5, resume=done.directory()))
    assert "seed" in str(refused.value)
    assert "temperature" in str(refused.value)


def test_a_changed_environment_is_refused(done: Any) -> None:
    source = done.environment.read_text()
    done.environment.write_text(source + "# changed\n")
    try:
        with pytest.raises(RunError, match=r"environment_source: was '[0-9a-f]+', is '[0-9a-f]+'"):
            done.run(done.config(resume=done.directory()))
    finally:
        done.environment.write_text(source)


def test_tasks_that_are_not_the_same_any_more_are_refused(done: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"example_id": number, "prompt": [{"role": "user", "content": "new"}]} for number in range(3)]
    monkeypatch.setattr("whet.evals.sessions.evaluation.select_rows", lambda env, config: rows)
    with pytest.raises(RunError, match="the first 3 are not those that were attempted"):
        done.run(done.config(resume=done.directory()))


def test_how_fast_it_is_run_may_change(done: Any) -> None:
    done.run(done.config(max_concurrent=1, timeout=60.0, max_retries=2, resume=done.directory()))
    assert done.begun() == []


@pytest.mark.parametrize("what", ["no such folder", "no metadata", "of verifiers"])
def test_what_is_no_evaluation_is_refused(room: Any, what: str) -> None:
    directory = room.folder / "other"
    if what != "no such folder":
        directory.mkdir()
    if what == "of verifiers":
        (directory / "metadata.json").write_text('{"env_id": "x"}')
    with pytest.raises(RunError, match="--resume"):
        room.run(room.config(resume=directory))
    assert room.begun() == []


def test_two_processes_do_not_write_to_one_directory(done: Any) -> None:
    lock = DirectoryLock(done.directory())
    try:
        with pytest.raises(RunError, match="is in use: another process"):
            done.run(done.config(resume=done.directory()))
    finally:
        lock.release()


def test_a_line_that_is_no_row_of_this_evaluation_is_refused_by_name(done: Any) -> None:
    with (done.directory() / "results.jsonl").open("a") as file:
        file.write('{"example_id": 99, "rollout": 0}\n')
    with pytest.raises(RunError, match="is no row of this evaluation"):
        done.run(done.config(resume=done.directory()))
