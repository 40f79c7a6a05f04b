"""Saved rollouts are scored again by another rubric, into a new evaluation."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from whet.cli.main import main
from whet.errors import RunError
from whet.evals.stored.rescore import rescore
from whet.evals.stored.stored import open_stored

PACKAGE = """
import whet

def load_environment(reward="exact"):
    rows = [{"question": f"What is {n} + 2?", "answer": str(n + 2)} for n in range(4)]

    def exact(completion, answer):
        return float(completion[-1]["content"] == answer)

    def lenient(completion, answer, state):
        return 0.5 * len(state["trajectory"]) if answer in completion[-1]["content"] else 0.0

    def best(completions):
        longest = max(len(one[-1]["content"]) for one in completions)
        return [float(len(one[-1]["content"]) == longest) for one in completions]

    def seen(state):
        return float(state.get("moves", 0) == 0)

    def column(state):
        return float(state["moves"])

    return whet.SingleTurnEnv(dataset=rows, rubric=whet.Rubric([locals()[reward]]))
"""


@pytest.fixture
def again(tmp_path: Path, stored: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes rows, scores them again, and returns the result and the new rows by task and attempt."""
    monkeypatch.delitem(sys.modules, "sums", raising=False)
    (tmp_path / "sums.py").write_text(PACKAGE)

    def run(rows: Any, reward: str, **metadata: Any) -> Any:
        directory = stored(rows, env_id="sums", **metadata)
        before = {path.name: path.read_bytes() for path in directory.iterdir()}
        result = rescore(directory, str(tmp_path / "sums.py"), {"reward": reward})
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
        return result, {(row["example_id"], row["rollout"]): row for row in open_stored(result.saved).rows()}

    return run


def test_rewards_are_those_of_today_and_the_changed_are_named(again: Any, row: Any) -> None:
    rows = [row(0, 1.0, said="2"), row(0, 0.0, 1, said="it is 2"), row(1, 1.0, said="no"), row(2, "ModelError")]
    result, new = again([*rows, row(3, "RewardError", said="5")], "lenient")
    assert [new[key]["reward"] for key in ((0, 0), (0, 1), (1, 0), (3, 0))] == [0.5, 0.5, 0.0, 0.5]
    assert new[0, 0]["metrics"] == {"lenient": 0.5, "num_turns": 1.0}
    assert new[2, 0]["error"]["error"] == "ModelError"
    assert result.failed_before == 1
    changed = [(one.example_id, one.rollout, one.before, one.after) for one in result.changed]
    assert changed == [(0, 0, 1.0, 0.5), (0, 1, 0.0, 0.5), (1, 0, 1.0, 0.0), (3, 0, None, 0.5)]
    metadata = open_stored(result.saved).metadata
    assert (metadata["avg_reward"], metadata["rescored"]["changed"]) == (0.375, 4)


def test_groups_are_scored_together(again: Any, row: Any) -> None:
    rows = [row(0, 0.0, said="2"), row(0, 0.0, 1, said="longer"), row(1, 0.0, said="a"), row(1, 0.0, 1, said="bc")]
    assert [one["reward"] for one in again(rows, "best")[1].values()] == [0.0, 1.0, 0.0, 1.0]


def test_state_that_was_not_saved_fails_the_rollout_by_name(again: Any, row: Any) -> None:
    result, new = again([row(0, 1.0)], "seen")
    assert new[0, 0]["reward"] is None
    assert "moves of the rollout's state" in next(iter(result.unscored))


def test_state_columns_are_there_again(again: Any, row: Any) -> None:
    assert again([row(0, 1.0, moves=7)], "column", state_columns=["moves"])[1][0, 0]["reward"] == 7.0


def test_rows_that_are_no_rollouts_of_its_tasks_are_named_and_the_rest_is_scored(again: Any, row: Any) -> None:
    odd = [
        row(9, 1.0),
        row(1, 1.0, prompt=5),
        row(2, 1.0, completion=[{"role": "pirate"}]),
        row(3, 1.0, timing={"setup": 3}),
    ]
    other = row(0, 1.0, 1, prompt=[{"role": "user", "content": "Another question"}])
    result, new = again([row(0, 0.0, said="2"), other, *odd], "exact")
    assert new[0, 0]["reward"] == 1.0
    assert result.scored == 1
    said = " ".join(result.unscored)
    assert len(result.unscored) == 5
    assert "no task of this example_id" in said
    assert "another prompt" in said


def test_a_line_that_is_no_row_writes_nothing(again: Any, row: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="line 2"):
        again([row(0, 1.0), {"reward": 1}], "exact")
    assert [path.name for path in tmp_path.iterdir() if "evaluation" in path.name] == ["evaluation"]


def test_what_has_not_ended_is_refused_and_a_torn_line_left_out(
    again: Any, stored: Any, row: Any, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="has not ended"):
        again([row(0, 1.0)], "exact", state="interrupted")
    with (tmp_path / "evaluation" / "results.jsonl").open("a") as file:
        file.write('{"example_id": 1, "rew')
    (tmp_path / "evaluation" / "metadata.json").write_text(json.dumps({"env_id": "sums"}))
    assert rescore(tmp_path / "evaluation", str(tmp_path / "sums.py")).rollouts == 1


def test_the_command_ends_with_1_where_nothing_could_be_scored(
    again: Any, row: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again([row(0, 1.0)], "exact")
    path = [str(tmp_path / "evaluation"), "--env", str(tmp_path / "sums.py")]
    assert main(["eval", "rescore", *path]) == 0
    assert "task 0, rollout 0: 1.000 -> 0.000" in capsys.readouterr().out
    assert main(["eval", "rescore", *path, "--env-args", '{"reward": "seen"}', "--json"]) == 1
