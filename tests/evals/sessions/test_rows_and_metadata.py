"""What stands on the disk while an evaluation runs, and after it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from whet.errors import ConfigError, DatasetError, ModelLoadError, WhetError
from whet.evals.sessions.session import worker_count


def test_rows_stand_in_the_order_of_tasks_and_say_which_attempt_they_are(room: Any) -> None:
    (summary,) = room.run(room.config())
    rows = [json.loads(line) for line in (summary.results / "results.jsonl").read_text().splitlines()]
    assert [(row["example_id"], row["rollout"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert len({row["completion"][-1]["content"] for row in rows}) == 6  # each has a seed of its own


def test_metadata_says_what_was_run_and_that_it_is_finished(room: Any) -> None:
    room.run(room.config(temperature=0.5, shuffle=3))
    metadata = room.metadata()
    assert (metadata["state"], metadata["num_examples"], metadata["rollouts_per_example"]) == ("finished", 3, 2)
    assert (metadata["seed"], metadata["shuffle"], metadata["sampling_args"]) == (0, 3, {"temperature": 0.5})
    assert (metadata["avg_reward"], metadata["num_errors"]) == (1.0, 0)
    assert metadata["identity"]["environment_source"]


def test_while_it_runs_metadata_says_so_and_rows_are_there_as_they_finish(room: Any, model: Any) -> None:
    say, found = model.script, []

    def look(prompt: Any, **offered: Any) -> str:
        found.append((room.metadata()["state"], len(room.rows())))
        return say(prompt=prompt, **offered)

    model.script = look
    room.run(room.config(max_concurrent=1))
    assert {state for state, _ in found} == {"running"}
    assert room.metadata()["state"] == "finished"


def test_a_row_is_scored_at_once_where_rollouts_are_not_compared(room: Any) -> None:
    room.order("wait", 1)
    room.run(room.config(timeout=1, max_concurrent=6))
    order = [(row["example_id"], row["rollout"]) for _, row in room.seen.rows]
    assert order[:4] == [(0, 0), (0, 1), (2, 0), (2, 1)]


def test_rollouts_that_are_compared_are_scored_together(room: Any) -> None:
    (summary,) = room.run(room.config(env_args={"together": True}))
    assert summary.metrics["share"] == 0.5


def test_independent_scoring_of_an_environment_that_compares_rollouts_is_refused_before_anything_runs(
    room: Any,
) -> None:
    with pytest.raises(ConfigError, match="scores the rollouts of a task together"):
        room.run(room.config(env_args={"together": True}, independent_scoring=True))
    assert room.begun() == []


def test_state_columns_are_saved_with_each_row(room: Any) -> None:
    room.run(room.config(state_columns=("trajectory_id",)))
    assert len({row["trajectory_id"] for row in room.rows()}) == 6


def test_a_rollout_that_takes_too_long_is_an_error_that_says_so(room: Any) -> None:
    room.order("wait", 1)
    (summary,) = room.run(room.config(timeout=1.5))
    assert summary.error_kinds == {"RolloutTimeoutError": 2}
    assert "took longer than 1.5 s" in room.rows()[2]["error"]["error_chain_repr"]


def test_a_failed_rollout_is_tried_again_as_often_as_asked(room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.rollouts.groups.random.uniform", lambda low, high: 0.0)
    room.order("fail", 1)
    room.run(room.config(max_retries=2))
    assert room.begun().count(1) == 6


def test_two_tasks_with_one_id_are_refused(room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"example_id": 4, "prompt": []}, {"example_id": 4, "prompt": []}]
    monkeypatch.setattr("whet.evals.sessions.evaluation.select_rows", lambda env, config: rows)
    with pytest.raises(DatasetError, match="example_id 4"):
        room.run(room.config())


def test_nothing_is_written_when_saving_is_off(room: Any) -> None:
    (summary,) = room.run(room.config(save=False))
    assert (summary.results, summary.rollouts) == (None, 6)
    assert not (room.folder / "out").exists()


def test_a_directory_that_cannot_be_written_is_one_clear_line(room: Any) -> None:
    (room.folder / "out").write_text("")
    with pytest.raises(WhetError, match="cannot write results here"):
        room.run(room.config())


def test_evaluations_of_one_model_share_it(room: Any, model: Any) -> None:
    room.run(room.config(max_concurrent=2), room.config(temperature=0.5, max_concurrent=5))
    assert [(load["model"], load["max_rows"]) for load in model.loaded] == [("whet/tiny", 5)]
    assert model.closed == 1


def test_a_model_that_is_missing_is_found_out_before_anything_is_run(room: Any) -> None:
    with pytest.raises(ModelLoadError, match=r"no model directory '\./nowhere'"):
        room.run(room.config(), room.config(model="./nowhere"))
    assert room.begun() == []


def test_the_next_evaluation_fills_the_places_that_the_last_rollouts_leave_free(room: Any) -> None:
    room.order("wait", 2)
    first = room.config(timeout=1, rollouts_per_example=1, max_concurrent=2)
    second = room.config(rollouts_per_example=1, num_examples=2, temperature=0.5, max_concurrent=2)
    room.run(first, second)
    assert [(number, row["example_id"]) for number, row in room.seen.rows] == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2)]
    assert room.seen.finished == [1, 0]


def test_watchers_are_told_of_the_plan_of_every_row_and_of_the_end(room: Any) -> None:
    room.run(room.config(), room.config(temperature=0.5))
    assert [(one.rollouts, one.sampling) for one in room.seen.planned] == [(6, "temperature 1"), (6, "temperature 0.5")]
    assert len(room.seen.rows) == 12
    assert (sorted(room.seen.finished), room.seen.closed) == ([0, 1], 1)


@pytest.mark.parametrize(
    ("fields", "workers"),
    [
        ({"max_concurrent": 256}, 1),
        ({"max_concurrent": 257}, 2),
        ({"max_concurrent": 2, "workers": 3}, 2),
        ({"max_concurrent": 512, "workers": 1}, 1),
    ],
)
def test_there_is_a_worker_for_every_256_rollouts_in_flight(room: Any, fields: Any, workers: int) -> None:
    assert worker_count(room.config(**fields)) == workers
