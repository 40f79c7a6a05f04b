"""Rollouts in processes of their own: the same results, whoever dies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from whet.errors import ConfigError, ModelError, RunError


def without_timing(rows: list[Any]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "timing"} for row in rows]


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def test_results_are_the_same_whatever_the_number_of_workers(room: Any, model: Any) -> None:
    say, before = model.script, children()

    def script(prompt: Any, **offered: Any) -> str:
        if prompt[-1]["content"] == "say 1":
            raise ModelError("no answer to this")
        return say(prompt=prompt, **offered)

    model.script = script
    room.order("fail", 3)
    found = []
    for workers in (1, 2, 3):
        config = room.config(
            env_args={"tasks": 5, "together": True},
            workers=workers,
            max_concurrent=4,
            state_columns=("trajectory_id", "advantage"),
            output_directory=room.folder / f"with_{workers}",
        )
        (summary,) = room.run(config)
        found.append(without_timing(room.rows(summary.results)))
    assert found[0] == found[1] == found[2]
    assert [row["error"] and row["error"]["error"] for row in found[0][2:8:2]] == ["ModelError", None, "InfraError"]
    said = found[0][6]["error"]["message"]
    assert re.fullmatch(rf"as ordered \({re.escape(str(room.environment))}:\d+\)", said)
    assert f"({__file__}:" in found[0][2]["error"]["message"]
    assert children() <= before  # what earlier tests left may end meanwhile


def test_the_tiny_model_says_the_same_to_workers(tmp_path: Path) -> None:
    from whet.evals.config import EvalConfig
    from whet.evals.observer import EvalObserver
    from whet.evals.sessions.session import run_evals
    from whet.rollouts.row_log import load_outputs

    found = []
    for workers in (1, 2):
        config = EvalConfig(
            environment="guess-number",
            num_examples=2,
            rollouts_per_example=2,
            max_tokens=8,
            threads=1,
            workers=workers,
            max_concurrent=4,
            output_directory=tmp_path / str(workers),
        )
        (summary,) = run_evals([config], EvalObserver())
        assert summary.results is not None
        found.append(without_timing(load_outputs(summary.results)))
    assert found[0] == found[1]
    assert all(row["error"] is None for row in found[0])


def test_what_a_worker_had_when_it_died_is_run_again(room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    room.order("die", 1)
    note = type(room.seen).note

    def end_the_order(seen: Any, text: str) -> None:
        note(seen, text)
        if "exited" in text:
            room.order("die")

    monkeypatch.setattr(type(room.seen), "note", end_the_order)
    (summary,) = room.run(room.config(workers=2, max_concurrent=2))
    assert (summary.rollouts, summary.errors) == (6, 0)
    deaths = [note for note in room.seen.notes if "exited with code 7" in note]
    assert len(deaths) in (1, 2)  # both workers may have had one of the task's rollouts
    assert "exited with code 7; it is replaced, and 1 rollout is run again" in deaths[0]


def test_a_rollout_that_kills_every_worker_becomes_an_error_and_the_others_finish(room: Any) -> None:
    room.order("die", 1)
    (summary,) = room.run(room.config(workers=2, max_concurrent=4, rollouts_per_example=1))
    assert (summary.rollouts, summary.error_kinds) == (3, {"WorkerDiedError": 1})
    row = room.rows()[1]
    assert "times on this rollout" in row["error"]["error_chain_repr"]
    assert "exited with code 7" in row["error"]["error_chain_repr"]


def test_a_worker_that_does_not_get_ready_is_not_waited_for_for_ever(
    room: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.rollouts.workers.pool.READY_S", 0.6)
    monkeypatch.setattr("whet.rollouts.workers.pool.STARTS_AT_MOST", 1)
    (room.folder / "hang_but_in").write_text(str(os.getpid()))
    with pytest.raises(RunError, match=r"do not get ready \(not ready after \d+ s\)"):
        room.run(room.config(workers=2, max_concurrent=2))
    assert list(room.folder.glob("out/*")) == []  # no row was saved, so nothing is left


def test_a_rollout_that_blocks_its_worker_beyond_the_time_limit_becomes_an_error(
    room: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.rollouts.workers.pool.STUCK_S", 1.0)
    monkeypatch.setattr("whet.rollouts.workers.assignment.DEATHS_AT_MOST", 1)
    room.order("block", 1)
    (summary,) = room.run(room.config(workers=2, max_concurrent=2, rollouts_per_example=1, timeout=3))
    assert (summary.rollouts, summary.error_kinds) == (3, {"WorkerDiedError": 1})
    assert "stuck for 4 s" in room.rows()[1]["error"]["error_chain_repr"]


def test_a_mistake_found_in_a_worker_ends_the_session_with_its_message(room: Any) -> None:
    with pytest.raises(ConfigError, match="state column 'client' holds a"):
        room.run(room.config(workers=2, max_concurrent=2, state_columns=("client",)))


def test_a_task_that_cannot_be_sent_is_named(room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"example_id": 0, "prompt": [{"role": "user", "content": "q"}], "checker": lambda: None}]
    monkeypatch.setattr("whet.evals.sessions.evaluation.select_rows", lambda env, config: rows)
    with pytest.raises(ConfigError, match="task 0 has a column 'checker' that cannot be sent"):
        room.run(room.config(workers=2, max_concurrent=2))


STUCK = """
import os, sys, time
from whet.rollouts.workers import process
from whet.system.children import when_closed
process.GRACE_S = 0.0
os.setsid()
when_closed(int(sys.argv[1]), process.end_of_session)
print("ready", flush=True)
time.sleep(3600)
"""


def test_a_worker_that_is_stuck_in_an_environment_ends_with_its_session() -> None:
    reading, writing = os.pipe()
    stuck = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(reading)], pass_fds=(reading,), stdout=subprocess.PIPE, text=True
    )
    os.close(reading)
    assert stuck.stdout is not None
    assert stuck.stdout.readline() == "ready\n"
    os.close(writing)
    assert stuck.wait(timeout=60) == -9
    stuck.stdout.close()


def test_a_model_that_cannot_be_loaded_ends_the_session_before_a_rollout_asks_for_it(tmp_path: Path) -> None:
    from whet.errors import ModelLoadError
    from whet.evals.config import EvalConfig
    from whet.evals.observer import EvalObserver
    from whet.evals.sessions.session import run_evals

    (tmp_path / "torn").mkdir()
    config = EvalConfig(
        environment="guess-number", model=str(tmp_path / "torn"), workers=2, output_directory=tmp_path / "out"
    )
    before = children()
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        run_evals([config], EvalObserver())
    assert list(tmp_path.glob("out/*")) == []
    assert children() <= before  # what earlier tests left may end meanwhile
