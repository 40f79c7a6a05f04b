"""Tools under chat templates that ignore them: they reach the model as text, and its calls are read from text."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.inference.weights import gguf_files

from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.inference.rendering.reading import read_calls
from whet.inference.rendering.writing import answer_ids
from whet.types import AssistantMessage, Messages, SystemMessage, Tool, ToolCall, ToolMessage, UserMessage

TOOL = Tool("calculate", "Evaluate.", {"type": "object", "properties": {"expression": {"type": "string"}}})
CALL = ToolCall("call_0_0", "calculate", '{"expression": "1+2"}')
CALL_TEXT = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "1+2"}}\n</tool_call>'
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + gguf_files.TEMPLATE
SYSTEM_LEFT_OUT = gguf_files.TEMPLATE.replace("in messages", "in messages if message.role != 'system'")
WITH_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}" + gguf_files.TEMPLATE


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of a GGUF model that has no token for `<tool_call>`."""
    from transformers import AutoTokenizer

    directory: Path = tmp_path_factory.mktemp("gguf")
    gguf_files.write(directory / "small.gguf")
    return AutoTokenizer.from_pretrained(directory, gguf_file="small.gguf")


def renderer_of(tokenizer: Any, template: str) -> ChatRenderer:
    tokenizer.chat_template = template
    return ChatRenderer(tokenizer)


def ids_of(renderer: ChatRenderer, text: str) -> list[int]:
    return list(renderer.tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("template", [gguf_files.TEMPLATE, SMOLLM2, NO_SYSTEM, SYSTEM_LEFT_OUT])
def test_tools_reach_a_model_whose_template_ignores_them(
    tokenizer: Any, template: str, caplog: pytest.LogCaptureFixture
) -> None:
    renderer = renderer_of(tokenizer, template)
    messages: Messages = [UserMessage("What is 1+2?")]
    with caplog.at_level(logging.WARNING):
        text = renderer.decode(renderer.render(messages, [TOOL]))
        renderer.render([UserMessage("Another")], [TOOL])
    (line,) = text.partition("<tools>\n")[2].partition("\n</tools>")[0].splitlines()
    assert json.loads(line)["function"] == dict(TOOL)
    place = "user" if template in (NO_SYSTEM, SYSTEM_LEFT_OUT) else "system"
    assert text.startswith(f"<|im_start|>{place}\nYou can use tools.")
    (record,) = [record for record in caplog.records if record.name.startswith("whet")]
    assert f"ignores tools: they are written into the {'first user' if place == 'user' else place} message" in (
        record.getMessage()
    )


def test_tools_follow_the_text_of_the_system_message(tokenizer: Any) -> None:
    renderer = renderer_of(tokenizer, SMOLLM2)
    text = renderer.decode(renderer.render([SystemMessage("Be short."), UserMessage("u")], [TOOL]))
    assert text.startswith("<|im_start|>system\nBe short.\n\nYou can use tools.")


def test_a_template_with_tools_writes_them_itself(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    renderer = renderer_of(tokenizer, WITH_TOOLS)
    assert "You can use tools" not in renderer.decode(renderer.render([UserMessage("u")], [TOOL]))
    assert not renderer.ignores_tools
    assert not [record for record in caplog.records if record.name.startswith("whet")]


def test_prompts_without_tools_are_what_the_template_writes(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    renderer = renderer_of(tokenizer, SMOLLM2)
    messages: Messages = [UserMessage("u")]
    assert renderer.render(messages) == tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    assert not [record for record in caplog.records if record.name.startswith("whet")]


def test_calls_are_read_from_the_sampled_text(tokenizer: Any) -> None:
    renderer = renderer_of(tokenizer, SMOLLM2)
    message = renderer.parse(
        ids_of(renderer, f"hm\n{CALL_TEXT}\n{CALL_TEXT}<|im_end|>"), tools=[TOOL], call_ids="call_2"
    )
    assert message.content == "hm"
    assert [call.id for call in message.tool_calls] == ["call_2_0", "call_2_1"]
    assert {(call.name, call.arguments) for call in message.tool_calls} == {("calculate", '{"expression": "1+2"}')}


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "calculate", "arguments": {\n</tool_call>',
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "calculate"',
        "<tool_call>" * 3,
        "</tool_call>",
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
    ],
)
def test_a_call_that_cannot_be_read_stays_in_the_text(text: str) -> None:
    assert read_calls(text)[:2] == (text, [])


TRICKY = [
    ('<tool_call>{"name": "f", "arguments": {"x": "</tool_call>"}}</tool_call>', "", [("f", {"x": "</tool_call>"})]),
    ('<tool_call>{"name": "f", "arguments": {"x": "<tool_call>"}}</tool_call>', "", [("f", {"x": "<tool_call>"})]),
    ('a<tool_call>{"name": "f"}</tool_call>b', "ab", [("f", None)]),
    ('<tool_call>"{\\"name\\": \\"f\\"}"</tool_call>', "", [("f", None)]),
    ('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [("f", '{"x": 1}')]),
    ('<tool_call>oh <tool_call>\n{"name": "f"}\n</tool_call> yes', "<tool_call>oh  yes", [("f", None)]),
    ('<tool_call>{"name": "f"} {"name": "g"}</tool_call>', None, []),
]


@pytest.mark.parametrize(("text", "left", "calls"), TRICKY)
def test_a_call_ends_where_its_json_does(text: str, left: str | None, calls: list[Any]) -> None:
    assert read_calls(text)[:2] == (text if left is None else left, calls)


@pytest.mark.parametrize("template", [gguf_files.TEMPLATE, SMOLLM2, NO_SYSTEM])
def test_a_continued_prompt_begins_with_what_was_sampled(tokenizer: Any, template: str) -> None:
    renderer = renderer_of(tokenizer, template)
    asked: Messages = [UserMessage("What is 1+2?")]
    prompt, sampled = renderer.render(asked, [TOOL]), ids_of(renderer, f"{CALL_TEXT}<|im_end|>")
    read = renderer.parse(sampled, prompt_ids=prompt, tools=[TOOL], call_ids="call_0")
    conversation: Messages = [*asked, read]
    added: Messages = [ToolMessage("3", tool_call_id="call_0_0"), ToolMessage("4", tool_call_id="call_0_1")]
    extended = renderer.extend(prompt, sampled, conversation, added, [TOOL])
    assert extended is not None
    assert extended[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    assert renderer.decode(extended[len(prompt) + len(sampled) :]) == (
        "\n<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert renderer.render([*conversation, *added], [TOOL]) == extended


def test_a_streamed_answer_is_the_message_that_is_read(tokenizer: Any) -> None:
    renderer = renderer_of(tokenizer, SMOLLM2)
    prompt = renderer.render([UserMessage("u")], [TOOL])
    for text in (f"First this.\n{CALL_TEXT}", "<tool_call> is not begun", CALL_TEXT, "a < b and <tool", "Only text."):
        ids = ids_of(renderer, f"{text}<|im_end|>")
        reader = renderer.reader(prompt, [TOOL])
        streamed = "".join(reader.feed([token]).content for token in ids)
        content = str(renderer.parse(ids, prompt_ids=prompt, tools=[TOOL]).content)
        assert content.startswith(streamed)
        assert text.partition("<tool_call>")[0].strip() in ("a < b and <tool", streamed)


def test_a_demonstration_with_calls_is_written_and_read_back(tokenizer: Any) -> None:
    renderer = renderer_of(tokenizer, SMOLLM2)
    answer = AssistantMessage("Let me see.", tool_calls=[CALL])
    ids = answer_ids(renderer, [UserMessage("u")], answer, [TOOL])
    assert renderer.decode(ids) == f"Let me see.\n{CALL_TEXT}<|im_end|>"
    assert renderer.parse(ids, tools=[TOOL], call_ids="call_0") == answer
