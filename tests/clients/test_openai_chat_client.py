"""The client for OpenAI-compatible servers, against a real HTTP server on loopback."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import whet
from whet.types import AssistantMessage, SystemMessage, Tool, ToolCall, ToolMessage, UserMessage

pytest.importorskip("openai")


class Server:
    """Answers every request with `status` and `body`, and keeps what it was asked."""

    def __init__(self):
        server = self
        self.status, self.body = 200, {}
        self.requests, self.headers = [], []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                server.headers.append(self.headers)
                server.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                payload = json.dumps(server.body).encode()
                self.send_response(server.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


@pytest.fixture
def server():
    one = Server()
    yield one
    one.http.shutdown()
    one.http.server_close()


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
        (completion({"content": ""}), whet.EmptyModelResponseError),
        ({**completion({"content": "x"}), "choices": []}, whet.InvalidModelResponseError),
        ({**completion({"content": "x"}), "choices": None}, whet.EmptyModelResponseError),
    ],
)
def test_a_response_that_is_none_is_an_error(server, body, error):
    server.body = body
    with pytest.raises(error):
        ask(server)


def test_a_server_that_is_not_there_is_a_model_error(server):
    server.http.shutdown()
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


def test_groups_are_spread_over_endpoints(server):
    other = Server()
    try:
        server.body = other.body = completion({"content": "x"})
        config = whet.ClientConfig(
            endpoint_configs=[whet.EndpointConfig(api_base_url=url) for url in (server.url, other.url)]
        )
        whet.SingleTurnEnv(dataset=[{"question": "?"}] * 4).evaluate_sync(config, "asked")
        assert (len(server.requests), len(other.requests)) == (2, 2)
    finally:
        other.http.shutdown()
        other.http.server_close()


def test_a_misspelt_config_key_is_refused():
    with pytest.raises(ValueError, match="api_base"):
        whet.ClientConfig(api_base="http://x")
