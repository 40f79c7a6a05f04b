"""The client for OpenAI's responses interface."""

import asyncio

import pytest

import whet
from whet.errors import ConfigError, ContentFilterError
from whet.types import AssistantMessage, SystemMessage, Tool, ToolCall, ToolMessage, UserMessage

pytest.importorskip("openai")

TEXT = {
    "type": "message", "id": "m1", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": "hello", "annotations": []}],
}  # fmt: skip
CALL = {
    "type": "function_call", "id": "f1", "call_id": "c9", "name": "add", "arguments": "{bad", "status": "completed",
}  # fmt: skip
REASONING = {
    "type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "xyz",
}  # fmt: skip


def answer(*output, **fields):
    usage = {
        "input_tokens": 7, "output_tokens": 3, "total_tokens": 10,
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 2},
    }  # fmt: skip
    return {
        "id": "resp", "object": "response", "created_at": 5, "model": "served", "status": "completed",
        "output": list(output), "usage": usage, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        "error": None, "incomplete_details": None, "instructions": None, "metadata": {}, **fields,
    }  # fmt: skip


def ask(server, messages=None, sampling_args=None, tools=None):
    async def run():
        client = whet.OpenAIResponsesClient(whet.ClientConfig(api_base_url=server.url, max_retries=0))
        try:
            return await client.get_response(messages or [UserMessage("hi")], "asked", sampling_args or {}, tools)
        finally:
            await client.close()

    return asyncio.run(run())


def test_text_reasoning_tool_calls_and_usage_are_read(server):
    server.body = answer(REASONING, TEXT, CALL)
    response = ask(server)
    message = response.message
    assert (message.content, message.reasoning_content, message.finish_reason) == ("hello", "hm", "tool_calls")
    assert message.tool_calls == [{"id": "c9", "name": "add", "arguments": "{bad"}]
    assert (response.usage.prompt_tokens, response.usage.completion_tokens, response.usage.reasoning_tokens) == (
        7,
        3,
        2,
    )
    assert (response.id, response.created, response.model) == ("resp", 5, "served")


def test_the_conversation_is_sent_as_items(server):
    server.body = answer(TEXT)
    ask(
        server,
        [
            SystemMessage("s"),
            UserMessage([{"type": "text", "text": "u"}, {"type": "image_url", "image_url": {"url": "http://x/i.png"}}]),
            AssistantMessage("well", tool_calls=[ToolCall(id="c1", name="add", arguments="{}")]),
            ToolMessage("2", tool_call_id="c1"),
        ],
    )
    assert server.paths == ["/v1/responses"]
    assert server.requests[0]["input"] == [
        {"type": "message", "role": "system", "content": "s"},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "u"},
                {"type": "input_image", "image_url": "http://x/i.png", "detail": "auto"},
            ],
        },
        {"type": "message", "role": "assistant", "content": "well"},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
    ]


def test_reasoning_is_sent_back_with_its_call(server):
    server.body = answer(REASONING, CALL)
    first = ask(server).message
    ask(server, [UserMessage("hi"), first, ToolMessage("2", tool_call_id="c9")])
    sent = server.requests[1]["input"]
    assert [item["type"] for item in sent] == ["message", "reasoning", "function_call", "function_call_output"]
    assert sent[1]["encrypted_content"] == "xyz"


def test_the_server_is_asked_to_keep_nothing(server):
    server.body = answer(TEXT)
    ask(server)
    assert server.requests[0]["store"] is False
    assert server.requests[0]["include"] == ["reasoning.encrypted_content"]


def test_sampling_arguments_and_tools_are_translated(server):
    server.body = answer(TEXT)
    tool = Tool("add", "Add.", {"type": "object"})
    ask(server, sampling_args={"max_tokens": 5, "temperature": 0.5, "reasoning_effort": "low", "n": 1}, tools=[tool])
    request = server.requests[0]
    assert (request["max_output_tokens"], request["temperature"], request["reasoning"]) == (5, 0.5, {"effort": "low"})
    assert "n" not in request
    assert request["tools"] == [
        {"type": "function", "name": "add", "description": "Add.", "parameters": {"type": "object"}, "strict": False}
    ]


@pytest.mark.parametrize(("argument", "words"), [({"n": 2}, "one answer"), ({"stop": ["x"]}, "no stop sequences")])
def test_what_the_interface_cannot_do_is_refused(server, argument, words):
    with pytest.raises(ConfigError, match=words):
        ask(server, sampling_args=argument)


def test_an_answer_cut_off_is_truncated(server):
    server.body = answer(TEXT, status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    message = ask(server).message
    assert (message.finish_reason, message.is_truncated) == ("length", True)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({**answer(), "output": None}, whet.EmptyModelResponseError),
        (answer(error={"code": "server_error", "message": "oops"}), whet.InvalidModelResponseError),
        (answer(TEXT, incomplete_details={"reason": "content_filter"}), ContentFilterError),
    ],
)
def test_a_response_that_is_none_is_an_error_of_the_rollout(server, body, error):
    server.body = body
    with pytest.raises(error):
        ask(server)


def test_an_empty_answer_is_an_answer(server):
    server.body = answer()
    assert ask(server).message.content == ""


def test_broken_arguments_are_sent_as_an_object(server):
    server.body = answer(TEXT)
    call = {"type": "function_call", "call_id": "1", "name": "add", "arguments": '{"a": 1'}
    own = AssistantMessage(None, tool_calls=[ToolCall(id="1", name="add", arguments='{"a": 1')])
    ask(server, [UserMessage("u"), own, AssistantMessage("", responses_output=[call])])
    assert [item["arguments"] for item in server.requests[0]["input"][1:]] == ['{"arguments": "{\\"a\\": 1"}'] * 2
