"""The client for OpenAI-compatible servers, against a real HTTP server on loopback."""

import asyncio
from types import SimpleNamespace

import pytest

import whet
import whet.errors
from whet.types import AssistantMessage, SystemMessage, Tool, ToolCall, ToolMessage, UserMessage

openai = pytest.importorskip("openai")


def completion(message, finish_reason="stop", **fields):
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    choice.update(fields.pop("choice", {}))
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {
        "id": "c1", "object": "chat.completion", "created": 5, "model": "served", "choices": [choice], "usage": usage,
        **fields,
    }  # fmt: skip


def ask(server, messages=None, sampling_args=None, tools=None, state=None, **config):
    async def run():
        client = whet.OpenAIChatCompletionsClient(
            whet.ClientConfig(api_base_url=server.url, max_retries=0, api_key_var="WHET_TEST_KEY", **config)
        )
        try:
            return await client.get_response(
                messages or [UserMessage("hi")], "asked", sampling_args or {}, tools, state=state
            )
        finally:
            await client.close()

    return asyncio.run(run())


def test_a_text_answer_with_usage(server):
    server.body = completion({"content": "hello"})
    response = ask(server)
    assert (response.message.content, response.message.finish_reason) == ("hello", "stop")
    assert (response.model, response.usage.prompt_tokens, response.usage.completion_tokens) == ("served", 7, 3)
    assert response.message.tokens is None
    assert server.requests[0]["model"] == "asked"


def test_the_conversation_is_sent_in_the_openai_form(server):
    server.body = completion({"content": "x"})
    call = ToolCall(id="1", name="add", arguments='{"a": 1}')
    ask(
        server,
        [
            SystemMessage("s"),
            UserMessage([{"type": "text", "text": "u"}]),
            AssistantMessage(None, tool_calls=[call], reasoning_content="hm"),
            ToolMessage("2", tool_call_id="1"),
        ],
    )
    assert server.requests[0]["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [{"type": "function", "id": "1", "function": {"name": "add", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "1"},
    ]


def test_a_tool_answer_without_parts_is_sent_as_empty_text(server):
    server.body = completion({"content": "x"})
    call = ToolCall(id="1", name="find", arguments="{}")
    ask(server, [UserMessage("u"), AssistantMessage(None, tool_calls=[call]), ToolMessage([], tool_call_id="1")])
    assert server.requests[0]["messages"][2] == {"role": "tool", "content": "", "tool_call_id": "1"}


def test_sampling_args_and_tools_are_sent(server):
    server.body = completion({"content": "x"})
    ask(
        server,
        sampling_args={"max_tokens": 5, "temperature": 0.5, "top_p": None, "extra_body": {"top_k": 3}},
        tools=[Tool("add", "Add.", {"type": "object"})],
    )
    request = server.requests[0]
    assert (request["max_completion_tokens"], request["temperature"], request["top_k"]) == (5, 0.5, 3)
    assert "max_tokens" not in request
    assert "top_p" not in request
    assert request["tools"] == [
        {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
    ]


def test_a_client_of_the_users_own_is_given_the_messages_as_arguments():
    given = {}

    async def create(**arguments):
        given.update(arguments)
        return openai.types.chat.ChatCompletion.model_validate(completion({"content": "x"}))

    own = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    client = whet.OpenAIChatCompletionsClient(own)
    asyncio.run(client.get_response([UserMessage("hi")], "asked", {"top_k": 3}))
    assert given == {"model": "asked", "messages": [{"role": "user", "content": "hi"}], "top_k": 3}


def test_tool_calls_and_reasoning_are_read(server):
    server.body = completion(
        {
            "content": None,
            "reasoning": "hm",
            "tool_calls": [{"id": "9", "type": "function", "function": {"name": "add", "arguments": "{bad"}}],
        },
        finish_reason="tool_calls",
    )
    message = ask(server).message
    assert (message.reasoning_content, message.finish_reason) == ("hm", "tool_calls")
    assert message.tool_calls == [{"id": "9", "name": "add", "arguments": "{bad"}]


def test_token_ids_and_logprobs_are_taken_over_where_the_server_returns_them(server):
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": []}] * 2}
    choice = {"token_ids": [4, 5], "logprobs": logprobs}
    server.body = completion({"content": "x"}, "length", choice=choice, prompt_token_ids=[1, 2, 3])
    message = ask(server).message
    assert (message.tokens.prompt_ids, message.tokens.completion_ids) == ([1, 2, 3], [4, 5])
    assert (message.tokens.completion_logprobs, message.tokens.policy_version) == ([-0.5, -0.5], [])
    assert message.is_truncated


def test_the_key_and_headers_are_sent(server, monkeypatch):
    monkeypatch.setenv("WHET_TEST_KEY", "sesame")
    server.body = completion({"content": "x"})
    state = whet.State(input={"example_id": 4}, trajectory_id="t")
    ask(server, state=state, extra_headers={"X-Team": "a"}, extra_headers_from_state={"X-Session": "trajectory_id"})
    headers = server.headers[0]
    assert (headers["Authorization"], headers["X-Team"], headers["X-Session"]) == ("Bearer sesame", "a", "t")


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (401, "bad key", whet.WhetError),
        (403, "not yours", whet.WhetError),
        (429, "You exceeded your current quota", whet.WhetError),
        (429, "slow down", whet.ModelError),
        (500, "oops", whet.ModelError),
        (400, "unknown field", whet.ModelError),
        (400, "This model's maximum context length is 8 tokens", whet.OverlongPromptError),
        (400, "triggered our content management policy", whet.errors.ContentFilterError),
    ],
)
def test_errors_are_fatal_or_one_turns_own(server, status, message, error):
    server.status, server.body = status, {"error": {"message": message}}
    with pytest.raises(error, match=message):
        ask(server)


def test_a_refused_key_names_the_variable_to_set(server):
    server.status, server.body = 401, {"error": {"message": "bad key"}}
    with pytest.raises(whet.WhetError, match="WHET_TEST_KEY"):
        ask(server)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({**completion({"content": "x"}), "choices": []}, whet.EmptyModelResponseError),
        ({**completion({"content": "x"}), "choices": None}, whet.EmptyModelResponseError),
    ],
)
def test_a_response_that_is_none_is_an_error(server, body, error):
    server.body = body
    with pytest.raises(error):
        ask(server)


def test_a_server_that_is_not_there_is_a_model_error(server):
    server.http.server_close()
    with pytest.raises(whet.ModelError, match="cannot be reached"):
        ask(server)


def test_an_environment_runs_on_a_client_config(server):
    server.body = completion({"content": "4"})
    env = whet.SingleTurnEnv(
        dataset=[{"question": "2+2", "answer": "4"}],
        rubric=whet.Rubric([lambda completion, answer: float(completion[-1].content == answer)]),
    )
    results = env.evaluate_sync(whet.ClientConfig(api_base_url=server.url), "asked")
    assert results["metadata"]["avg_reward"] == 1.0
    assert results["metadata"]["base_url"] == server.url
    assert results["outputs"][0]["token_usage"]["output_tokens"] == 3.0


def test_groups_are_spread_over_replicas(server, other_server):
    server.body = other_server.body = completion({"content": "x"})
    config = whet.ClientConfig(
        endpoint_configs=[whet.EndpointConfig(api_base_url=one.url) for one in (server, other_server)]
    )
    whet.SingleTurnEnv(dataset=[{"question": "?"}] * 4).evaluate_sync(config, "asked", rollouts_per_example=3)
    assert (len(server.requests), len(other_server.requests)) == (6, 6)


def test_what_the_package_has_no_parameter_for_goes_into_the_body(server):
    server.body = completion({"content": "x"})
    ask(server, sampling_args={"min_p": 0.1, "extra_body": {"top_k": 3}})
    assert (server.requests[0]["min_p"], server.requests[0]["top_k"]) == (0.1, 3)


def test_a_content_filter_fails_the_turn_and_is_not_tried_again(server):
    server.body = completion({"content": "x"}, finish_reason="content_filter")
    with pytest.raises(whet.errors.ContentFilterError):
        ask(server)


def test_a_busy_server_is_asked_again_when_it_says_so(server):
    server.body = completion({"content": "x"})
    server.reply_headers = {"retry-after-ms": "1"}
    server.plan = [(429, {"error": {"message": "slow down"}}), (503, {"error": {"message": "restarting"}})]

    async def run():
        client = whet.OpenAIChatCompletionsClient(whet.ClientConfig(api_base_url=server.url, max_retries=3))
        response = await client.get_response([UserMessage("hi")], "asked", {})
        await client.close()
        return response

    assert asyncio.run(run()).message.content == "x"
    assert len(server.requests) == 3


def test_usage_has_its_cost_where_the_price_is_known(server):
    server.body = completion({"content": "4"})
    config = whet.ClientConfig(api_base_url=server.url, price={"input": 2.0, "output": 10.0})
    results = whet.SingleTurnEnv(dataset=[{"question": "?"}]).evaluate_sync(config, "asked")
    assert results["outputs"][0]["token_usage"]["cost"] == pytest.approx((7 * 2.0 + 3 * 10.0) / 1e6)
    assert results["metadata"]["usage"]["cost"] == pytest.approx(4.4e-05)


def test_no_more_requests_than_the_endpoint_has_places(server):
    server.body = completion({"content": "x"})
    most = 0

    async def run():
        nonlocal most
        client = whet.OpenAIChatCompletionsClient(whet.ClientConfig(api_base_url=server.url, max_concurrent=2))
        inside = 0
        post = client.client.post

        async def counted(*given, **arguments):
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            try:
                return await post(*given, **arguments)
            finally:
                inside -= 1

        client.client.post = counted
        await asyncio.gather(*(client.get_response([UserMessage("hi")], "asked", {}) for _ in range(8)))
        await client.close()

    asyncio.run(run())
    assert (most, len(server.requests)) == (2, 8)


def test_a_misspelt_config_key_is_refused():
    with pytest.raises(ValueError, match="api_base"):
        whet.ClientConfig(api_base="http://x")
