"""What is posted to OpenAI's interfaces, and what is made of the answers: the same as by the package's own methods."""

import asyncio
import json

import pytest

import whet
from whet.types import TextMessage, Tool, UserMessage

openai = pytest.importorskip("openai")

MESSAGE = {"role": "assistant", "content": "hello"}
CHOICE = {"index": 0, "message": MESSAGE, "finish_reason": "stop"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
CHAT = {
    "id": "c1", "object": "chat.completion", "created": 5, "model": "served", "choices": [CHOICE], "usage": USAGE,
}  # fmt: skip
CALL = {"id": "9", "type": "function", "function": {"name": "add", "arguments": "{bad"}}
LOGPROBS = {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": [], "bytes": [97]}]}


def choice(**fields):
    return {**CHAT, "choices": [{**CHOICE, **fields}]}


def message(**fields):
    return choice(message={**MESSAGE, **fields})


def both(server, sampling_args=None, tools=None, **headers):
    """What whet's client and the package's own method read of the answer; what each has sent is in `server`."""
    if headers:
        server.reply_headers = headers

    async def run():
        client = whet.OpenAIChatCompletionsClient(whet.ClientConfig(api_base_url=server.url, max_retries=0))
        native_tools = await client.to_native_tools(tools)
        prompt, _ = await client.to_native_prompt([UserMessage("hi")])
        ours = await client.get_native_response(prompt, "asked", sampling_args or {}, native_tools)
        named = {"tools": native_tools} if native_tools else {}
        theirs = await client.client.chat.completions.create(
            model="asked", messages=prompt, **(sampling_args or {}), **named
        )
        await client.close()
        return ours, theirs

    return asyncio.run(run())


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(CHAT, id="as it should be"),
        pytest.param({**CHAT, "prompt_token_ids": [1, 2], "kv_transfer_params": None}, id="fields of the server's own"),
        pytest.param(choice(token_ids=[4], stop_reason=None, logprobs=LOGPROBS), id="token ids and logprobs"),
        pytest.param(message(content=None, tool_calls=[CALL], reasoning="hm"), id="a tool call and reasoning"),
        pytest.param(message(tool_calls=[{"id": "9", "function": CALL["function"]}]), id="a tool call of no type"),
        pytest.param(message(content=5), id="a number as content"),
        pytest.param(message(content="\ud800 \N{SNOWMAN} \u2028"), id="half a character"),
        pytest.param(choice(finish_reason="eos"), id="an end of the server's own"),
        pytest.param(choice(logprobs={"content": [{"token": "a", "logprob": float("-inf")}]}), id="no number"),
        pytest.param({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}, id="hardly anything"),
        pytest.param({**CHAT, "choices": None}, id="no choices"),
    ],
)
def test_an_answer_is_read_as_the_package_reads_it(server, body):
    server.body = body
    ours, theirs = both(server)
    assert type(ours) is type(theirs)
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize("kind", ["text/html", "application/json; charset=utf-8"])
def test_what_is_json_is_read_as_such_whatever_it_is_called(server, kind):
    server.body = CHAT
    ours, theirs = both(server, **{"Content-Type": kind})
    assert repr(ours) == repr(theirs)
    assert ours.choices[0].message.content == "hello"


def ask(server, sampling_args=None):
    async def run():
        client = whet.OpenAIChatCompletionsClient(whet.ClientConfig(api_base_url=server.url, max_retries=0))
        try:
            return await client.get_response([UserMessage("hi")], "asked", sampling_args or {})
        finally:
            await client.close()

    return asyncio.run(run())


@pytest.mark.parametrize("kind", ["text/html", "application/json"])
def test_what_is_no_json_is_no_answer(server, kind):
    server.body, server.reply_headers = b"<html>Welcome</html>", {"Content-Type": kind}
    with pytest.raises(whet.ModelError):
        ask(server)


def test_a_request_is_what_the_package_would_send(server):
    server.body = CHAT
    sampling_args = {
        "temperature": 0.5, "stop": ["x"], "logit_bias": {"5": 1}, "timeout": 30.0, "extra_body": {"top_k": 3},
        "extra_headers": {"X-Team": "a"}, "extra_query": {"version": "2"},
    }  # fmt: skip
    both(server, sampling_args, [Tool("add", "Add.", {"type": "object"})])
    ours, theirs = server.requests
    assert ours == theirs
    assert server.paths == ["/v1/chat/completions?version=2"] * 2
    assert dict(server.headers[0]) == dict(server.headers[1])
    assert server.headers[0]["X-Team"] == "a"
    assert server.headers[0]["x-stainless-read-timeout"] == "30.0"


def test_a_continuation_of_text_is_posted_too(server):
    given = {"id": "c1", "object": "text_completion", "created": 5, "model": "served", "usage": USAGE}
    server.body = {**given, "choices": [{"index": 0, "text": " b", "finish_reason": "stop", "logprobs": None}]}

    async def run():
        client = whet.OpenAICompletionsClient(whet.ClientConfig(api_base_url=server.url))
        ours = await client.get_native_response("a", "asked", {"min_p": 0.1})
        theirs = await client.client.completions.create(model="asked", prompt="a", extra_body={"min_p": 0.1})
        response = await client.get_response([TextMessage("a")], "asked", {})
        await client.close()
        return ours, theirs, response

    ours, theirs, response = asyncio.run(run())
    assert repr(ours) == repr(theirs)
    assert json.dumps(server.requests[0], sort_keys=True) == json.dumps(server.requests[1], sort_keys=True)
    assert response.message.content == " b"
