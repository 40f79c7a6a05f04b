"""Answers streamed as they are sampled, as the `openai` and `anthropic` packages see them."""

import asyncio
import threading

import anthropic
import openai
import pytest

from whet.clients.client import Client, Delta
from whet.errors import ModelError, OverlongPromptError
from whet.gateway.app import Gateway
from whet.types import Response, ResponseMessage, ResponseTokens, ToolCall, Usage

HI = [{"role": "user", "content": "hi"}]
CALLS = [ToolCall("c1", "add", '{"a": 1}'), ToolCall("c2", "add", "{}")]
PIECES = [
    Delta(reasoning="h", prompt_tokens=7),
    Delta(reasoning="m"),
    Delta(content="wel"),
    Delta(content="l"),
    Delta(tool_calls=(CALLS[0],)),
    Delta(tool_calls=(CALLS[1],)),
]


class Piecewise(Client):
    """Tells `pieces`; waits after the first until `go_on` is set, and ends with `error` where there is one."""

    def __init__(self):
        super().__init__(None)
        self.pieces, self.error, self.go_on = PIECES, None, threading.Event()

    async def get_response(self, prompt, model, sampling_args, tools=None, *, state=None, on_delta=None, **kwargs):
        for number, delta in enumerate(self.pieces):
            on_delta(delta)
            while number == 0 and not self.go_on.is_set():
                await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        calls = [call for delta in self.pieces for call in delta.tool_calls]
        message = ResponseMessage(
            "".join(delta.content for delta in self.pieces),
            tool_calls=calls or None,
            reasoning_content="".join(delta.reasoning for delta in self.pieces) or None,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
            tokens=ResponseTokens(
                prompt_ids=[1] * 7, completion_ids=[5, 6], completion_logprobs=[-1.0, -2.0], policy_version=[[0, 2]]
            ),
        )
        return Response(id="x", model=model, message=message, usage=Usage(prompt_tokens=7, completion_tokens=2))


@pytest.fixture
def model():
    return Piecewise()


@pytest.fixture
def gateway(model):
    return Gateway({"scripted": model})


@pytest.fixture
def client(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def claude(address):
    with anthropic.Anthropic(base_url=address, api_key="any", max_retries=0, timeout=60) as client:
        yield client


def chat(client, **more):
    return client.chat.completions.create(model="scripted", messages=HI, stream=True, **more)


def first_then_rest(model, stream, is_first):
    """All events of a stream; the model continues only when the first piece has been read."""
    seen = []
    for event in stream:
        seen.append(event)
        if is_first(event):
            model.go_on.set()
    return seen


def test_a_chat_completion_is_told_while_the_model_writes(client, model):
    chunks = first_then_rest(
        model,
        chat(client, stream_options={"include_usage": True}),
        lambda chunk: getattr(chunk.choices[0].delta, "reasoning_content", None) == "h" if chunk.choices else False,
    )
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert [delta.content for delta in deltas if delta.content] == ["wel", "l"]
    assert [call.index for delta in deltas for call in delta.tool_calls or ()] == [0, 0, 1, 1]
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert chunks[-1].choices == []
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (7, 2)
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_helper_of_the_package_puts_a_chat_completion_together(client, model):
    model.go_on.set()
    with client.chat.completions.stream(model="scripted", messages=HI) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.content == "well"
    assert [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls] == [
        (call.id, call.name, call.arguments) for call in CALLS
    ]


def test_token_ids_and_logprobs_come_with_the_last_choice(client, model):
    model.go_on.set()
    last = list(chat(client, logprobs=True, extra_body={"return_token_ids": True}))[-1]
    assert [entry.logprob for entry in last.choices[0].logprobs.content] == [-1.0, -2.0]
    assert (last.choices[0].token_ids, last.prompt_token_ids) == ([5, 6], [1] * 7)


def test_a_completion_is_told_while_the_model_writes(client, model):
    model.pieces = [Delta(content=" once", prompt_tokens=1), Delta(content=" upon")]
    stream = client.completions.create(
        model="scripted", prompt="x", stream=True, stream_options={"include_usage": True}
    )
    pieces = first_then_rest(model, stream, lambda piece: piece.choices and piece.choices[0].text == " once")
    assert [piece.choices[0].text for piece in pieces[:-1]] == [" once", " upon", ""]
    assert pieces[-2].choices[0].finish_reason == "stop"
    assert pieces[-1].usage.completion_tokens == 2


def test_a_response_is_told_in_the_events_of_the_interface(client, model):
    stream = client.responses.create(model="scripted", input="hi", stream=True)
    events = first_then_rest(model, stream, lambda event: event.type == "response.reasoning_summary_text.delta")
    reasoning = ["reasoning_summary_part.added", *["reasoning_summary_text.delta"] * 2]
    reasoning += ["reasoning_summary_text.done", "reasoning_summary_part.done"]
    text = ["content_part.added", *["output_text.delta"] * 2, "output_text.done", "content_part.done"]
    call = ["function_call_arguments.delta", "function_call_arguments.done"]
    items = [["output_item.added", *inside, "output_item.done"] for inside in (reasoning, text, call, call)]
    kinds = ["created", "in_progress", *(kind for item in items for kind in item), "completed"]
    assert [event.type for event in events] == [f"response.{kind}" for kind in kinds]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert events[-1].response.output == done
    assert [item.type for item in done] == ["reasoning", "message", "function_call", "function_call"]
    assert (done[0].summary[0].text, done[1].content[0].text, done[2].arguments) == ("hm", "well", '{"a": 1}')
    assert events[-1].response.usage.total_tokens == 9


def test_a_message_is_told_in_the_events_of_the_interface(claude, model):
    stream = claude.messages.create(model="scripted", max_tokens=9, messages=HI, stream=True)
    events = first_then_rest(model, stream, lambda event: event.type == "content_block_delta")
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    thought = [block[0], *[block[1]] * 3, block[2]]  # two deltas and a signature
    text = [block[0], *[block[1]] * 2, block[2]]
    kinds = ["message_start", *thought, *text, *block, *block, "message_delta", "message_stop"]
    assert [event.type for event in events] == kinds
    assert [event.index for event in events if event.type == "content_block_start"] == [0, 1, 2, 3]
    assert events[0].message.usage.input_tokens == 7
    assert (events[-2].usage.output_tokens, events[-2].delta.stop_reason) == (2, "tool_use")


def test_the_helper_of_the_package_puts_a_message_together(claude, model):
    model.go_on.set()
    with claude.messages.stream(model="scripted", max_tokens=9, messages=HI) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (final.content[0].thinking, final.content[1].text, final.content[2].input) == ("hm", "well", {"a": 1})


def test_an_error_before_the_beginning_has_a_status(client, claude, model):
    model.pieces, model.error = [], OverlongPromptError("9 tokens")
    with pytest.raises(openai.BadRequestError, match="too long"):
        chat(client)
    with pytest.raises(openai.BadRequestError, match="too long"):
        client.responses.create(model="scripted", input="hi", stream=True)
    with pytest.raises(anthropic.BadRequestError, match="too long"):
        claude.messages.create(model="scripted", max_tokens=9, messages=HI, stream=True)


def test_an_error_after_the_beginning_is_an_event_of_the_interface(client, claude, model):
    model.error = ModelError("out of memory")
    model.go_on.set()
    with pytest.raises(openai.APIError, match="out of memory"):
        list(chat(client))
    with pytest.raises(openai.APIError, match="out of memory"):
        list(client.completions.create(model="scripted", prompt="x", stream=True))
    events = list(client.responses.create(model="scripted", input="hi", stream=True))
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert "out of memory" in events[-2].message
    assert events[-1].response.error.code == "server_error"
    with pytest.raises(anthropic.APIStatusError, match="out of memory"):
        list(claude.messages.create(model="scripted", max_tokens=9, messages=HI, stream=True))


def test_what_a_client_told_and_did_not_say_is_an_error(client, model, monkeypatch):
    model.go_on.set()
    model.pieces = [Delta(content="one")]

    async def another(*args, on_delta, **kwargs):
        on_delta(Delta(content="one"))
        return Response(id="x", model="m", message=ResponseMessage("two", finish_reason="stop", is_truncated=False))

    monkeypatch.setattr(model, "get_response", another)
    with pytest.raises(openai.APIError, match="turned out other"):
        list(chat(client))


def test_a_client_that_tells_nothing_is_streamed_whole(client, model, monkeypatch):
    async def silent(*args, **kwargs):
        return Response(id="x", model="m", message=ResponseMessage("all", finish_reason="stop", is_truncated=False))

    monkeypatch.setattr(model, "get_response", silent)
    assert [chunk.choices[0].delta.content for chunk in chat(client)] == ["", "all", None]
