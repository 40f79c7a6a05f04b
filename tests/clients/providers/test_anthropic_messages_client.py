"""The client for Anthropic's messages interface."""

import asyncio

import pytest

import whet
from whet.errors import ConfigError
from whet.types import AssistantMessage, SystemMessage, Tool, ToolCall, ToolMessage, UserMessage

pytest.importorskip("anthropic")

THINKING = {"type": "thinking", "thinking": "hm", "signature": "sig"}
TEXT = {"type": "text", "text": "hello"}
CALL = {"type": "tool_use", "id": "t9", "name": "add", "input": {"a": 1}}


def answer(*content, stop_reason="end_turn", **usage):
    return {
        "id": "msg", "type": "message", "role": "assistant", "model": "served", "content": list(content),
        "stop_reason": stop_reason, "stop_sequence": None, "usage": {"input_tokens": 7, "output_tokens": 3, **usage},
    }  # fmt: skip


def ask(server, messages=None, sampling_args=None, tools=None, state=None, **config):
    async def run():
        client = whet.AnthropicMessagesClient(
            whet.ClientConfig(api_base_url=server.origin, max_retries=0, api_key_var="WHET_TEST_KEY", **config)
        )
        try:
            return await client.get_response(
                messages or [UserMessage("hi")], "asked", sampling_args or {}, tools, state=state
            )
        finally:
            await client.close()

    return asyncio.run(run())


def test_text_thinking_tool_calls_and_usage_are_read(server):
    server.body = answer(THINKING, TEXT, CALL, stop_reason="tool_use", cache_read_input_tokens=5)
    response = ask(server)
    message = response.message
    assert (message.content, message.reasoning_content, message.finish_reason) == ("hello", "hm", "tool_calls")
    assert message.tool_calls == [{"id": "t9", "name": "add", "arguments": '{"a": 1}'}]
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (12, 3)
    assert server.paths == ["/v1/messages"]


def test_the_conversation_is_sent_in_the_form_of_the_interface(server):
    server.body = answer(TEXT)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    ask(
        server,
        [
            SystemMessage("s"),
            UserMessage([{"type": "text", "text": "u"}, picture]),
            AssistantMessage(
                None, tool_calls=[ToolCall("1", "add", '{"a": 1}'), ToolCall(id="2", name="add", arguments="{bad")]
            ),
            ToolMessage("2", tool_call_id="1"),
            ToolMessage("no JSON", tool_call_id="2"),
            UserMessage("go on"),
        ],
    )
    request = server.requests[0]
    assert request["system"] == "s"
    assert request["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "u"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 1}},
                {"type": "tool_use", "id": "2", "name": "add", "input": {"arguments": "{bad"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "2"}]},
                {"type": "tool_result", "tool_use_id": "2", "content": [{"type": "text", "text": "no JSON"}]},
                {"type": "text", "text": "go on"},
            ],
        },
    ]


def test_thinking_goes_back_with_the_call_it_led_to(server):
    server.body = answer(THINKING, CALL, stop_reason="tool_use")
    first = ask(server).message
    ask(server, [UserMessage("hi"), first, ToolMessage("2", tool_call_id="t9")])
    assert server.requests[1]["messages"][1]["content"] == [THINKING, CALL]


def test_sampling_arguments_and_tools_are_translated(server):
    server.body = answer(TEXT)
    tool = Tool("add", "Add.", {"type": "object"})
    ask(server, sampling_args={"max_tokens": 5, "temperature": 0.5, "stop": "END", "top_p": None}, tools=[tool])
    request = server.requests[0]
    assert (request["max_tokens"], request["temperature"], request["stop_sequences"]) == (5, 0.5, ["END"])
    assert "top_p" not in request
    assert request["tools"] == [{"name": "add", "description": "Add.", "input_schema": {"type": "object"}}]


def test_a_limit_is_sent_where_none_was_given(server):
    server.body = answer(TEXT)
    ask(server)
    assert server.requests[0]["max_tokens"] == 4096


def test_the_key_and_headers_are_sent(server, monkeypatch):
    monkeypatch.setenv("WHET_TEST_KEY", "sesame")
    server.body = answer(TEXT)
    state = whet.State(input={"example_id": 4}, trajectory_id="t")
    ask(server, state=state, extra_headers={"X-Team": "a"}, extra_headers_from_state={"X-Session": "trajectory_id"})
    headers = server.headers[0]
    # The package's older releases have a header of their own for the key.
    assert "sesame" in (headers["x-api-key"] or headers["Authorization"])
    assert (headers["X-Team"], headers["X-Session"]) == ("a", "t")


def test_more_than_one_answer_a_request_is_refused(server):
    with pytest.raises(ConfigError, match="one answer"):
        ask(server, sampling_args={"n": 2})


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({**answer(), "content": None}, whet.EmptyModelResponseError),
        (answer(TEXT, stop_reason="pause_turn"), whet.InvalidModelResponseError),
    ],
)
def test_a_response_that_is_none_is_an_error_of_the_rollout(server, body, error):
    server.body = body
    with pytest.raises(error):
        ask(server)


@pytest.mark.parametrize(
    ("body", "text"),
    [(answer(), ""), (answer(stop_reason="refusal"), ""), (answer(TEXT, stop_reason="refusal"), TEXT["text"])],
)
def test_a_refusal_and_an_empty_answer_are_answers(server, body, text):
    server.body = body
    message = ask(server).message
    assert (message.content, message.tool_calls, message.is_truncated) == (text, None, False)


def test_max_tokens_that_do_not_fit_become_what_is_left(server):
    server.body = answer(TEXT)
    says = "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length"
    server.plan = [(400, {"type": "error", "error": {"type": "invalid_request_error", "message": says}})]
    assert ask(server, sampling_args={"max_tokens": 21333}).message.content == TEXT["text"]
    assert [request["max_tokens"] for request in server.requests] == [21333, 11760]


def test_a_field_that_is_refused_is_left_out(server):
    server.body = answer(TEXT)
    says = "metadata.user: Extra inputs are not permitted"
    server.plan = [(400, {"type": "error", "error": {"type": "invalid_request_error", "message": says}})]
    ask(server, sampling_args={"metadata": {"user": "x", "user_id": "y"}})
    assert server.requests[1]["metadata"] == {"user_id": "y"}


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (401, "bad key", whet.WhetError),
        (400, "Your credit balance is too low", whet.WhetError),
        (404, "model: asked", whet.WhetError),
        (429, "slow down", whet.ModelError),
        (529, "Overloaded", whet.ModelError),
        (400, "unknown field", whet.ModelError),
        (400, "prompt is too long: 9 tokens > 8 maximum", whet.OverlongPromptError),
    ],
)
def test_errors_are_fatal_or_one_turns_own(server, status, message, error):
    server.status = status
    server.body = {"type": "error", "error": {"type": "some_error", "message": message}}
    with pytest.raises(error, match=message):
        ask(server)
