"""What a reflection model is told of a rollout."""

from __future__ import annotations

import json
from typing import Any

from whet.gepa.reflection.rollout_records import make_records
from whet.gepa.types import RolloutCall, Scored
from whet.system.files import json_line

ROW: dict[str, Any] = {
    "example_id": 3,
    "prompt": [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "3 times 4?"}],
    "completion": [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "I need the tool.",
            "tool_calls": ['{"id": "1", "name": "times", "arguments": "{\\"a\\": 3}"}'],
        },
        {"role": "tool", "content": "b is missing", "tool_call_id": "1"},
        {"role": "assistant", "content": "7"},
    ],
    "answer": "12",
    "reward": 0.0,
    "metrics": {"exact_match": 0.0},
    "timing": {"total": 1.25},
    "token_usage": {"input_tokens": 40.0},
    "is_truncated": False,
    "stop_condition": "no_tools_called",
    "tool_defs": [{"name": "times", "description": "Multiply.", "parameters": {"type": "object"}}],
    "cities": ["Rome"],
}


def record(component: str = "system_prompt", columns: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    row = {**ROW, **fields}
    scored = Scored(RolloutCall("c0ffee", "train/sums/3", 0), row["reward"], row.get("error"), row)
    return make_records([scored], component, columns)[0]


def test_messages_tool_calls_their_results_and_thoughts_are_told_in_order() -> None:
    assert record()["completion"] == [
        {"role": "assistant, thinking", "text": "I need the tool."},
        {"role": "assistant, tool call", "text": 'times({"a": 3})'},
        {"role": "tool result", "text": "b is missing"},
        {"role": "assistant", "text": "7"},
    ]
    assert [message["role"] for message in record()["prompt"]] == ["system", "user"]


def test_reward_metrics_the_right_answer_and_the_environment_are_told() -> None:
    told = record()
    assert (told["reward"], told["metrics"], told["expected"]) == (0.0, {"exact_match": 0.0}, "12")
    assert told["environment"] == "sums"


def test_an_error_is_told() -> None:
    assert record(error="ToolCallError: no such city")["error"] == "ToolCallError: no such city"


def test_state_columns_are_told_where_they_were_asked_for_and_hold_something() -> None:
    assert record()["state"] == {}
    assert record(columns=("cities", "absent"))["state"] == {"cities": ["Rome"]}


def test_an_end_is_told_where_it_says_how_the_rollout_went() -> None:
    assert record()["ended"] is None
    assert record(stop_condition="max_turns_reached")["ended"] == "max_turns_reached"
    single = [{"role": "assistant", "content": "7"}]
    assert record(stop_condition="max_turns_reached", completion=single)["ended"] is None


def test_records_hold_tool_parameters_for_tool_descriptions_only() -> None:
    told = {"name": "times", "parameters": {"type": "object"}}
    assert record("tool:times")["tool"] == record("tool:times@sums")["tool"] == told
    assert "tool" not in record()


def test_a_text_of_one_environment_is_told_of_its_rollouts_only() -> None:
    own = Scored(RolloutCall("c0ffee", "train/sums/3", 0), 1.0, None, ROW)
    other = Scored(RolloutCall("c0ffee", "train/words/3", 0), 0.0, None, {**ROW, "tool_defs": []})
    assert [one["environment"] for one in make_records([own, other], "system_prompt", ())] == ["sums", "words"]
    assert [one["environment"] for one in make_records([own, other], "system_prompt@words", ())] == ["words"]
    assert [one["environment"] for one in make_records([own, other], "tool:times", ())] == ["sums"]


def test_for_the_prompt_of_a_judge_what_it_said_is_told() -> None:
    assert record("judge", judge_response={"Is 7 right?": "no"})["judge"] == "no"
    several = {"Is 7 right?": "no", "Is it polite?": "yes"}
    assert record("judge", judge_response=several)["judge"] == several
    assert record("judge")["judge"] is None


def test_images_are_marks() -> None:
    content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:..."}}]
    prompt = [{"role": "user", "content": content}]
    assert record(prompt=prompt)["prompt"] == [{"role": "user", "text": "What is this? [image]"}]


def test_a_row_read_from_disk_makes_the_same_record_as_the_row_that_was_written() -> None:
    odd = {"metrics": {"ratio": float("nan"), "count": 2}, "cities": ("Rome", {"at": 1})}
    read = json.loads(json_line({**ROW, **odd}))
    assert record(columns=("cities",), **odd) == record(columns=("cities",), **read)


def test_nothing_that_differs_between_two_equal_rollouts_is_told() -> None:
    later = {"timing": {"total": 9.0}, "token_usage": {"input_tokens": 41.0}, "example_id": 7}
    assert record(**later) == record()
