"""The client for servers that continue plain text."""

import asyncio

import pytest

import whet
from whet.errors import ConfigError
from whet.types import SystemMessage, TextMessage, Tool, UserMessage

pytest.importorskip("openai")


def completion(text, finish_reason="stop", **choice):
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    choices = [{"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": None, **choice}]
    return {
        "id": "c1", "object": "text_completion", "created": 5, "model": "served", "choices": choices, "usage": usage,
    }  # fmt: skip


def ask(server, messages=None, sampling_args=None, tools=None):
    async def run():
        client = whet.OpenAICompletionsClient(whet.ClientConfig(api_base_url=server.url, max_retries=0))
        try:
            return await client.get_response(messages or [TextMessage("once")], "asked", sampling_args or {}, tools)
        finally:
            await client.close()

    return asyncio.run(run())


def test_the_texts_of_the_messages_are_the_prompt(server):
    server.body = completion(" upon a time")
    response = ask(server, [SystemMessage("s"), UserMessage([{"type": "text", "text": "u"}])], {"max_tokens": 4})
    assert (server.paths, server.requests[0]["prompt"]) == (["/v1/completions"], "s\n\nu")
    assert server.requests[0]["max_tokens"] == 4
    assert (response.message.content, response.message.finish_reason) == (" upon a time", "stop")
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (7, 3)


def test_token_ids_and_logprobs_are_taken_over(server):
    logprobs = {"token_logprobs": [-0.5, -0.25], "tokens": ["a", "b"], "text_offset": [0, 1], "top_logprobs": None}
    server.body = completion("ab", "length", prompt_token_ids=[1, 2], token_ids=[3, 4], logprobs=logprobs)
    message = ask(server).message
    assert (message.tokens.prompt_ids, message.tokens.completion_ids) == ([1, 2], [3, 4])
    assert message.tokens.completion_logprobs == [-0.5, -0.25]
    assert message.is_truncated


def test_tools_and_images_are_refused_for_the_whole_run(server):
    with pytest.raises(ConfigError, match=r"knows no tools, and there is 'add'.*openai_chat_completions"):
        ask(server, tools=[Tool("add", "Add.", {"type": "object"})])
    with pytest.raises(ConfigError, match="text only"):
        ask(server, [UserMessage([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}])])
    assert server.requests == []


def test_an_empty_answer_is_an_answer(server):
    server.body = completion("")
    assert ask(server).message.content == ""
