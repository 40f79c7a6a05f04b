"""Rows of every common shape become conversations; a row that cannot is refused with what is wrong in it."""

import json
from typing import Any

import pytest

from whet.errors import DatasetError
from whet.rl.sft.rows import TrainingConversation, conversation_of

USER, ASSISTANT = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
TOOL = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def read(row: dict[str, Any], train_on: Any = "assistant") -> TrainingConversation:
    return conversation_of(row, train_on)


def test_every_assistant_message_of_messages_carries_loss() -> None:
    assert read({"messages": [USER, ASSISTANT, USER, ASSISTANT]}).trained == {1, 3}


def test_only_the_last_one_does_where_that_is_asked_for() -> None:
    assert read({"messages": [USER, ASSISTANT, USER, ASSISTANT]}, "last").trained == {3}


def test_of_prompt_and_completion_only_the_completion_carries_loss() -> None:
    found = read({"prompt": [USER, ASSISTANT, USER], "completion": [ASSISTANT]})
    assert (len(found.messages), found.trained) == (4, {3})


def test_prompt_and_completion_as_text_are_a_user_and_the_assistant() -> None:
    found = read({"prompt": "Hi", "completion": "Hello"})
    assert [(message["role"], message["content"]) for message in found.messages] == [
        ("user", "Hi"),
        ("assistant", "Hello"),
    ]


def test_a_weight_of_0_takes_a_message_out_of_the_loss() -> None:
    assert read({"messages": [USER, {**ASSISTANT, "weight": 0}, USER, {**ASSISTANT, "weight": 1}]}).trained == {3}


@pytest.mark.parametrize(
    "tools", [[TOOL], [{"type": "function", "function": TOOL}], json.dumps([TOOL]), [json.dumps(TOOL)]]
)
def test_tools_are_read_in_every_common_form(tools: Any) -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "1"}
    found = read({"messages": [USER, called, result, ASSISTANT], "tools": tools})
    assert [dict(tool)["name"] for tool in found.tools] == ["add"]
    assert found.tools[0]["parameters"] == TOOL["parameters"]
    assert found.messages[1]["tool_calls"][0]["name"] == "add"


def test_columns_that_are_null_are_not_there() -> None:
    row = {"messages": [{**USER, "tool_calls": None, "reasoning_content": None}, {**ASSISTANT, "tool_calls": None}]}
    assert read(row).messages[1].get("tool_calls") is None


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"text": "a"}, "expected messages, or prompt and completion; the row has text"),
        ({"messages": []}, "no assistant message"),
        ({"messages": [USER]}, "no assistant message"),
        ({"prompt": [USER, ASSISTANT], "completion": [USER]}, "the completion has no assistant message"),
        ({"messages": [ASSISTANT, USER]}, "begins with the assistant"),
        ({"messages": [{"role": "bot", "content": "a"}]}, r"messages\[0\] has role 'bot'"),
        ({"messages": [USER, {"role": "assistant", "content": 3}]}, r"messages\[1\].*content 3"),
        ({"messages": 3}, "a list of messages, not int"),
        ({"messages": "not json"}, "not JSON"),
        ({"messages": [USER, {**ASSISTANT, "weight": 0.5}]}, "weight of an assistant message is 0 or 1"),
        ({"messages": [USER, ASSISTANT], "tools": [{"nam": "a"}]}, r"tools\[0\] should be a tool"),
    ],
)
def test_a_row_that_is_no_conversation_is_refused(row: dict[str, Any], says: str) -> None:
    with pytest.raises(DatasetError, match=says):
        read(row)
