"""Rollouts on disk: rows as the trainer saw them, files whole or absent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.clients.scripted import ScriptedClient
from whet.envs.multiturn_env import MultiTurnEnv
from whet.errors import RunError
from whet.rl.monitors.protocol import EvalReport
from whet.rl.storage.records import discard_after
from whet.rl.storage.run_directory import write_evaluation, write_step
from whet.rollouts.groups import run_group
from whet.rollouts.token_rows import read_rollouts, rollout_row
from whet.rollouts.totals import EvalScore
from whet.rubrics.rubric import Rubric
from whet.system.files import json_line
from whet.types import Messages, Response, ResponseMessage, ResponseTokens, State, UserMessage

TURNS = [
    # prompt, completion, versions: an extension, then a branch, then a prompt that shares nothing
    ([1, 2], [3, 4], [[5, 2]]),
    ([1, 2, 3, 4, 9], [6], [[5, 1]]),
    ([1, 2, 8], [7, 7, 7], [[5, 1], [6, 2]]),
    ([20, 21], [22], [[6, 1]]),
]


class Talk(MultiTurnEnv):
    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        return [UserMessage("go on")]


def reward(completion: Messages) -> float:
    return len(completion) / 10


def attempt(turns: list[tuple[list[int], list[int], list[list[int]]]] | None, failing: bool = False) -> State:
    """A rollout of the talk by a scripted engine; None for one that reports no tokens."""

    def answer(turn: int) -> Response:
        if failing and turn == 1:
            raise ValueError("the engine fell over")
        tokens = None
        if turns is not None:
            prompt_ids, ids, versions = turns[turn]
            tokens = ResponseTokens(prompt_ids, ids, [-0.25 * (i + 1) for i in range(len(ids))], versions)
        message = ResponseMessage(f"turn {turn}\ud800", finish_reason="stop", tokens=tokens)
        return Response(str(turn), "scripted", message, created=0)

    env = Talk(
        dataset=[{"question": "hello", "answer": "bye"}],
        rubric=Rubric(funcs=[reward]),
        max_turns=len(turns) if turns is not None else 2,
        env_id="talk",
    )
    (state,) = asyncio.run(run_group(env, list(env.get_dataset()), ScriptedClient(answer), "scripted", {}))
    return state


def stored(state: State, directory: Path, **fields: Any) -> dict[str, Any]:
    row = rollout_row(state, group="12", environment="talk", advantage=0.5, **fields)
    (read,) = read_rollouts(write_step(directory, 1, [row]))
    return read


def test_a_row_says_what_was_said_and_what_it_earned(tmp_path: Path) -> None:
    row = stored(attempt(TURNS), tmp_path)
    assert (row["group"], row["environment"], row["example_id"], row["advantage"]) == ("12", "talk", 0, 0.5)
    assert row["prompt"] == [{"role": "user", "content": "hello"}]
    assert [message["role"] for message in row["completion"]] == ["assistant", "user"] * 3 + ["assistant"]
    assert row["completion"][0]["content"] == "turn 0\ud800"
    assert row["reward"] == pytest.approx(0.7)
    assert row["metrics"]["reward"] == pytest.approx(0.7)
    assert (row["answer"], row["error"], row["stop_condition"]) == ("bye", None, "max_turns_reached")


def test_every_turn_comes_back_as_the_engine_reported_it(tmp_path: Path) -> None:
    state = attempt(TURNS)
    turns = stored(state, tmp_path)["turns"]
    for turn, step in zip(turns, state["trajectory"], strict=True):
        tokens = step["tokens"]
        assert turn == {name: tokens[name] for name in turn}
        assert set(turn) >= {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "completion_logprobs"}


def test_only_the_new_end_of_a_prompt_is_kept(tmp_path: Path) -> None:
    row = rollout_row(attempt(TURNS), group="1", environment="talk", advantage=0.0)
    kept = [(turn["prompt_start"], turn["prompt_ids"]) for turn in row["turns"]]
    assert kept == [(0, [1, 2]), (4, [9]), (2, [8]), (0, [20, 21])]


ids = st.lists(st.integers(0, 2), max_size=6)


@given(st.lists(st.tuples(ids, st.lists(st.integers(0, 2), min_size=1, max_size=4)), min_size=1, max_size=5))
def test_any_sequence_of_turns_survives(turns: list[tuple[list[int], list[int]]]) -> None:
    trajectory = [
        {
            "tokens": {
                "prompt_ids": prompt,
                "completion_ids": said,
                "completion_mask": [index % 2 for index in range(len(said))],
                "completion_logprobs": [-1.0] * len(said),
                "policy_version": [[0, len(said)]],
            }
        }
        for prompt, said in turns
    ]
    state = attempt(None)
    state["trajectory"] = trajectory
    row = json.loads(json_line(rollout_row(state, group="1", environment="e", advantage=None)))
    before: list[int] = []
    for turn, (prompt, said) in zip(row["turns"], turns, strict=True):
        assert before[: turn["prompt_start"]] + turn["prompt_ids"] == prompt
        before = prompt + said


def test_a_turn_without_tokens_stays_in_its_place(tmp_path: Path) -> None:
    assert stored(attempt(None), tmp_path)["turns"] == [None, None]


def test_a_row_can_leave_its_tokens_out(tmp_path: Path) -> None:
    assert "turns" not in stored(attempt(TURNS), tmp_path, tokens=False)


def test_a_failed_rollout_keeps_its_error_and_has_no_reward(tmp_path: Path) -> None:
    row = stored(attempt(TURNS, failing=True), tmp_path)
    assert row["reward"] is None
    assert row["error"]["error"] == "ModelError"
    assert "the engine fell over" in row["error"]["error_chain_repr"]


def test_an_evaluation_is_one_file_whose_rows_say_how_they_were_sampled(tmp_path: Path) -> None:
    row = rollout_row(attempt(TURNS), group="0", environment="talk", advantage=None)
    scores = [EvalScore("talk", sampling, 0.7, {}, 1, rows=[row]) for sampling in ("temperature 1", "greedy")]
    path = write_evaluation(tmp_path, EvalReport("before", 0, 0, scores))
    assert path.name == "eval_before.jsonl"
    assert [row["sampling"] for row in read_rollouts(path)] == ["temperature 1", "greedy"]


def test_a_write_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("whet.system.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_step(tmp_path, 1, [{"a": 1}])
    assert list(tmp_path.iterdir()) == []


def test_resuming_removes_later_steps_and_the_last_evaluation(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_step(tmp_path, step, [])
    for moment, step in (("before", 0), ("during", 2), ("during", 3), ("after", 3)):
        write_evaluation(tmp_path, EvalReport(moment, step, step, []))  # type: ignore[arg-type]
    discard_after(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "eval_before.jsonl",
        "eval_step_000002.jsonl",
        "step_000001.jsonl",
        "step_000002.jsonl",
    ]


def test_resuming_a_run_that_wrote_nothing_is_fine(tmp_path: Path) -> None:
    discard_after(tmp_path / "rollouts", 0)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write_step(tmp_path, 1, [])
    path.write_text("garbage\n")
    with pytest.raises(RunError, match=r"step_000001\.jsonl, line 1"):
        list(read_rollouts(path))
