"""Messages to ids and back, with the tiny model's tokenizer and with unknown templates."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripts.tiny_model.tokenizer import build_tokenizer

from whet.errors import ModelError, ModelLoadError
from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.types import AssistantMessage, Messages, SystemMessage, TextMessage, Tool, ToolCall, ToolMessage, UserMessage

TOOL = Tool("calculate", "Evaluate.", {"type": "object", "properties": {"expression": {"type": "string"}}})
UNKNOWN_TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(build_tokenizer())


def ids_of(renderer: ChatRenderer, text: str) -> list[int]:
    return list(renderer.tokenizer.encode(text))


def test_the_tiny_tokenizer_speaks_qwen3_whatever_its_directory_is_called(renderer: ChatRenderer) -> None:
    assert renderer.name == "qwen3"
    assert [renderer.decode([token]) for token in renderer.stop_token_ids] == ["<|im_end|>", "<|endoftext|>"]


def test_a_prompt_is_what_the_chat_template_says(renderer: ChatRenderer) -> None:
    messages: Messages = [SystemMessage("s"), UserMessage("What is 1 plus 2?")]
    wrapped = [{"type": "function", "function": {**TOOL}}]
    expected = renderer.tokenizer.apply_chat_template(
        messages, tools=wrapped, add_generation_prompt=True, return_dict=False
    )
    assert renderer.render(messages, [TOOL]) == expected


def test_rendering_twice_gives_lists_that_are_not_shared(renderer: ChatRenderer) -> None:
    first = renderer.render([UserMessage("x")])
    first.append(0)
    assert renderer.render([UserMessage("x")]) == first[:-1]


def test_thinking_can_be_switched_off(renderer: ChatRenderer) -> None:
    on, off = renderer.render([UserMessage("x")]), renderer.render([UserMessage("x")], enable_thinking=False)
    assert renderer.decode(off[len(on) :]) == "<think>\n\n</think>\n\n"


def test_plain_text_is_encoded_as_it_is(renderer: ChatRenderer) -> None:
    assert renderer.decode(renderer.render([TextMessage("once upon")])) == "once upon"


def test_a_tool_call_is_read(renderer: ChatRenderer) -> None:
    text = 'hm\n<tool_call>\n{"name": "calculate", "arguments": {"expression": "é+1"}}\n</tool_call><|im_end|>'
    message = renderer.parse(ids_of(renderer, text), tools=[TOOL], call_ids="call_2")
    assert message.content == "hm"
    (call,) = message.tool_calls
    assert (call.id, call.name, json.loads(call.arguments)) == ("call_2_0", "calculate", {"expression": "é+1"})


@pytest.mark.parametrize(
    "block",
    [
        '<tool_call>\n{"name": "calculate", "arguments": {\n</tool_call>',
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "calculate"',
    ],
)
def test_a_call_that_cannot_be_read_stays_in_the_content(renderer: ChatRenderer, block: str) -> None:
    message = renderer.parse(ids_of(renderer, f"{block}<|im_end|>"), tools=[TOOL])
    assert message.tool_calls is None
    assert message.content == block


@pytest.mark.parametrize(
    ("text", "content", "arguments"),
    [
        ('<tool_call>{"name": "calculate", "arguments": {"expression": "</tool_call>"}}</tool_call>', "",
         {"expression": "</tool_call>"}),
        ('hm\n<tool_call>{"name": "calculate", "arguments": {}}</tool_call>\nthat is all', "hm\n\nthat is all", {}),
        ('<tool_call>{"name": "calculate", "arguments": "{\\"expression\\": \\"1\\"}"}</tool_call>', "",
         {"expression": "1"}),
        ('<tool_call>{"name": "calculate", "arguments": null}</tool_call>', "", {}),
        ('<tool_call>{"name": "calculate"}</tool_call>', "", {}),
    ],
)  # fmt: skip
def test_a_call_is_read_whatever_is_in_it_and_after_it(
    renderer: ChatRenderer, text: str, content: str, arguments: Any
) -> None:
    message = renderer.parse(ids_of(renderer, f"{text}<|im_end|>"), tools=[TOOL])
    (call,) = message.tool_calls
    assert (call.name, json.loads(call.arguments), message.content) == ("calculate", arguments, content)


def test_thinking_is_parted_from_the_answer(renderer: ChatRenderer) -> None:
    message = renderer.parse(ids_of(renderer, "<think>\nfirst\n</think>\n\nthen<|im_end|>"))
    assert (message.reasoning_content, message.content) == ("first", "then")


def test_extending_equals_rendering_whole_where_nothing_was_lost(renderer: ChatRenderer) -> None:
    conversation: Messages = [UserMessage("a"), AssistantMessage("b")]
    prompt, completion = renderer.render(conversation[:1]), ids_of(renderer, "b<|im_end|>")
    added: Messages = [UserMessage("c")]
    assert renderer.extend(prompt, completion, conversation, added) == renderer.render([*conversation, *added])


def test_tool_results_extend_the_turn_that_asked(renderer: ChatRenderer) -> None:
    call = ToolCall("call_0", "calculate", '{"expression": "1+2"}')
    conversation: Messages = [UserMessage("a"), AssistantMessage("", tool_calls=[call])]
    prompt = renderer.render(conversation[:1], [TOOL])
    completion = ids_of(
        renderer, '<tool_call>\n{"name": "calculate", "arguments": {"expression": "1+2"}}\n</tool_call><|im_end|>'
    )
    extended = renderer.extend(prompt, completion, conversation, [ToolMessage("3", tool_call_id="call_0")], [TOOL])
    assert extended is not None
    tail = renderer.decode(extended[len(prompt) + len(completion) :])
    assert tail == "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


def with_template(template: str | None) -> Any:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def test_an_unknown_template_is_extended_by_what_it_writes_after_an_answer() -> None:
    renderer = ChatRenderer(with_template(UNKNOWN_TEMPLATE))
    assert renderer.name == "default"
    conversation: Messages = [UserMessage("a"), AssistantMessage("b")]
    prompt, completion = renderer.render(conversation[:1]), ids_of(renderer, "b<|im_end|>")
    extended = renderer.extend(prompt, completion, conversation, [UserMessage("c")])
    assert extended is not None
    assert renderer.decode(extended) == "[user]a<|im_end|>[assistant]b<|im_end|>[user]c<|im_end|>[assistant]"


def test_a_tokenizer_without_a_chat_template_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="no chat template"):
        ChatRenderer(with_template(None))


def test_half_characters_are_replaced_and_the_message_keeps_them(renderer: ChatRenderer) -> None:
    messages: Messages = [
        UserMessage("a\ud800b"),
        AssistantMessage("c", tool_calls=[ToolCall("1", "calculate", "\udc00")]),
    ]
    assert "a\ufffdb" in renderer.decode(renderer.render(messages, [TOOL]))
    assert messages[0]["content"] == "a\ud800b"
    assert "d\ufffd" in renderer.decode(renderer.render([TextMessage("d\udfff")]))


def test_an_image_is_refused_rather_than_left_out(renderer: ChatRenderer) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(ModelError, match="reads text, and a user message has a part of type 'image_url'"):
        renderer.render([UserMessage([{"type": "text", "text": "What is this?"}, image])])
    assert "What is this?" in renderer.decode(
        renderer.render([UserMessage([{"type": "text", "text": "What is this?"}])])
    )
