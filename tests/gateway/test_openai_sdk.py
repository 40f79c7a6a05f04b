"""The gateway as the `openai` package sees it: chat completions, completions, responses, with streaming and tools."""

import hashlib

import openai
import pytest

from whet.errors import ModelError
from whet.gateway.app import Gateway
from whet.inference.loading import load_policy

TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"tool_calls": [{"id": "c1", "name": "add", "arguments": '{"a": 1}'}]}


@pytest.fixture
def client(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client:
        yield client


def chat(client, **more):
    messages = more.pop("messages", [{"role": "user", "content": "hi"}])
    return client.chat.completions.create(model="scripted", messages=messages, **more)


def test_a_chat_completion(client, model):
    answer = chat(client, max_tokens=5, temperature=0.5, seed=3)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("hello", "stop")
    assert answer.model == "scripted"
    assert model.asked[0]["sampling_args"] == {"max_tokens": 5, "temperature": 0.5, "seed": 3}


def test_a_chat_completion_calls_tools_and_reads_their_results(client, model):
    model.answers = [CALL]
    answer = chat(client, tools=[TOOL])
    call = answer.choices[0].message.tool_calls[0]
    assert (call.id, call.function.name, call.function.arguments) == ("c1", "add", '{"a": 1}')
    assert answer.choices[0].finish_reason == "tool_calls"
    assert model.asked[0]["tools"][0]["name"] == "add"
    result = {"role": "tool", "tool_call_id": "c1", "content": "2"}
    chat(client, messages=[{"role": "user", "content": "hi"}, answer.choices[0].message, result])
    seen = model.asked[1]["prompt"]
    assert [message["role"] for message in seen] == ["user", "assistant", "tool"]
    assert seen[1]["tool_calls"] == [{"id": "c1", "name": "add", "arguments": '{"a": 1}'}]


def test_a_streamed_chat_completion(client, model):
    model.answers = [{"content": "well", "reasoning_content": "hm", **CALL}]
    with client.chat.completions.stream(
        model="scripted", messages=[{"role": "user", "content": "hi"}], stream_options={"include_usage": True}
    ) as stream:
        final = stream.get_final_completion()
    message = final.choices[0].message
    assert (message.content, message.tool_calls[0].function.arguments) == ("well", '{"a": 1}')
    assert final.usage is not None


def test_a_completion_and_a_streamed_one(client, model):
    model.answers = [" upon a time", " there was"]
    assert client.completions.create(model="scripted", prompt="once").choices[0].text == " upon a time"
    pieces = client.completions.create(model="scripted", prompt="once", stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == " there was"
    assert model.asked[0]["prompt"][0]["role"] == "text"


def test_a_response_calls_tools_and_reads_their_results(client, model):
    model.answers = [{"reasoning_content": "hm", **CALL}]
    tool = {"type": "function", **TOOL["function"], "strict": False}
    first = client.responses.create(model="scripted", instructions="be brief", input="hi", tools=[tool])
    assert [item.type for item in first.output] == ["reasoning", "function_call"]
    items = [item.model_dump(exclude_none=True) for item in first.output]
    result = {"type": "function_call_output", "call_id": "c1", "output": "2"}
    second = client.responses.create(model="scripted", input=[{"role": "user", "content": "hi"}, *items, result])
    assert second.output_text == "hello"
    assert model.asked[0]["prompt"][0] == {"role": "system", "content": "be brief"}
    seen = model.asked[1]["prompt"]
    assert [message["role"] for message in seen] == ["user", "assistant", "tool"]
    assert (seen[1]["reasoning_content"], seen[1]["tool_calls"][0]["name"]) == ("hm", "add")


def test_a_streamed_response(client, model):
    model.answers = [{"content": "well", **CALL}]
    with client.responses.stream(model="scripted", input="hi") as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == "well"
    assert final.output[1].arguments == '{"a": 1}'
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


def test_an_answer_cut_off_says_so_in_every_interface(client, model):
    model.answers = [{"content": "we", "finish_reason": "length"} for _ in range(3)]
    assert chat(client).choices[0].finish_reason == "length"
    assert client.completions.create(model="scripted", prompt="x").choices[0].finish_reason == "length"
    assert client.responses.create(model="scripted", input="x").incomplete_details.reason == "max_output_tokens"


def test_several_answers_to_one_chat(client, model):
    model.answers = ["one", {"content": "two", "finish_reason": "length"}, CALL]
    answer = chat(client, n=3, seed=5, tools=[TOOL])
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.message.content for choice in answer.choices[:2]] == ["one", "two"]
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "length", "tool_calls"]
    seeds = [asked["sampling_args"]["seed"] for asked in model.asked]
    assert seeds[0] == 5
    assert len({*seeds}) == 3
    digest = hashlib.blake2b(b"5/choice 1", digest_size=8).digest()
    assert seeds[1] == int.from_bytes(digest, "big") >> 1  # the same in every version


def test_several_streamed_answers_to_one_chat(client, model):
    model.answers = ["one", {"content": "two", **CALL}]
    said, calls, ends = ["", ""], [[], []], [[], []]
    for chunk in chat(client, n=2, stream=True, tools=[TOOL], stream_options={"include_usage": True}):
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content or ""
            calls[choice.index] += choice.delta.tool_calls or []
            ends[choice.index] += [choice.finish_reason] if choice.finish_reason else []
    assert said == ["one", "two"]
    assert [len(each) for each in calls] == [0, 2]
    assert ends == [["stop"], ["tool_calls"]]
    assert chunk.usage is not None


def test_several_answers_fail_together(client, model):
    model.answers = ["one", ModelError("no answer"), "three"]
    with pytest.raises(openai.InternalServerError, match="no answer"):
        chat(client, n=3)


@pytest.fixture(scope="module")
def tiny():
    return load_policy("whet/tiny", threads=1)


@pytest.fixture
def of_tiny(tiny, running):
    with (
        running(Gateway({"tiny": tiny.client})) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client,
    ):
        yield client


PROMPT = {"model": "tiny", "messages": [{"role": "user", "content": "Reverse the text: abcdefgh"}], "max_tokens": 12}


def test_several_answers_share_their_prompt_and_differ(of_tiny, tiny):
    before = tiny.engine.stats.prefill_tokens
    ids = {"return_token_ids": True}
    answer = of_tiny.chat.completions.create(**PROMPT, n=8, seed=1, temperature=2.0, extra_body=ids)
    tokens = [choice.token_ids for choice in answer.choices]
    assert len({*map(tuple, tokens)}) > 4
    assert tiny.engine.stats.prefill_tokens - before == len(answer.prompt_token_ids) - 1
    assert answer.usage.prompt_tokens == len(answer.prompt_token_ids)
    assert answer.usage.completion_tokens == sum(map(len, tokens))
    again = of_tiny.chat.completions.create(**PROMPT, n=8, seed=1, temperature=2.0, extra_body=ids)
    assert [choice.token_ids for choice in again.choices] == tokens
    alone = of_tiny.chat.completions.create(**PROMPT, seed=1, temperature=2.0, extra_body=ids)
    assert alone.choices[0].token_ids == tokens[0]


@pytest.mark.parametrize("n", [1, 5])
def test_several_answers_are_streamed_as_they_are_given_whole(of_tiny, n):
    more = {"n": n, "seed": 3, "temperature": 1.5}
    whole = of_tiny.chat.completions.create(**PROMPT, **more)
    said, usage = [""] * n, None
    with of_tiny.chat.completions.create(
        **PROMPT, **more, stream=True, stream_options={"include_usage": True}
    ) as chunks:
        for chunk in chunks:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                said[choice.index] += choice.delta.content or ""
    assert said == [choice.message.content for choice in whole.choices]
    assert usage == whole.usage


def test_several_completions_whole_and_streamed(of_tiny):
    more = {"model": "tiny", "prompt": "abc", "max_tokens": 8, "n": 4, "best_of": 4, "seed": 2, "temperature": 1.5}
    whole = of_tiny.completions.create(**more)
    said = [""] * 4
    for chunk in of_tiny.completions.create(**more, stream=True):
        for choice in chunk.choices:
            said[choice.index] += choice.text
    assert said == [choice.text for choice in whole.choices]
    assert len({*said}) > 1
    with pytest.raises(openai.BadRequestError, match="best_of"):
        of_tiny.completions.create(**{**more, "best_of": 5})


def test_several_answers_in_a_session_are_turns_of_its_rollout(address, gateway, model, recorded_session):
    model.answers = ["one", "two", "three"]
    session = gateway.sessions.add(recorded_session(model, "policy"))
    with openai.OpenAI(base_url=f"{address}/sessions/{session.id}/v1", api_key=session.secret, max_retries=0) as client:
        answer = chat(client, n=2)
    assert [choice.message.content for choice in answer.choices] == ["one", "two"]
    assert [step["completion"][0]["content"] for step in session.state["trajectory"]] == ["one", "two"]


def test_the_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["scripted"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n": 0}, "n: Input should be greater"),
        ({"n": 129}, "n: Input should be less"),
        ({"temperature": -1}, "temperature"),
        ({"tool_choice": "required", "tools": [TOOL]}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role 'robot'"),
    ],
)
def test_what_cannot_be_is_a_bad_request_that_names_the_field(client, model, arguments, words):
    with pytest.raises(openai.BadRequestError, match=words):
        chat(client, **arguments)
    assert model.asked == []


def test_a_model_that_is_not_there(client):
    with pytest.raises(openai.NotFoundError, match="no model 'other' here; there are: scripted"):
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}])


def test_a_session_records_what_a_program_does(address, gateway, model, recorded_session):
    session = gateway.sessions.add(recorded_session(model, "policy", sampling_args={"temperature": 1.0}))
    base = f"{address}/sessions/{session.id}/v1"
    with openai.OpenAI(base_url=base, api_key=session.secret, max_retries=0) as client:
        client.chat.completions.create(
            model="whatever-it-is-called", temperature=0, messages=[{"role": "user", "content": "hi"}]
        )
    step = session.state["trajectory"][0]
    assert (step["prompt"][0]["content"], step["completion"][0]["content"]) == ("hi", "hello")
    assert model.asked[0]["sampling_args"] == {"temperature": 1.0}


def test_a_session_is_closed_to_who_does_not_know_its_secret(address, gateway, model, recorded_session):
    session = gateway.sessions.add(recorded_session(model, "policy"))
    for session_id, key in ((session.id, "wrong"), ("other", session.secret)):
        with (
            openai.OpenAI(base_url=f"{address}/sessions/{session_id}/v1", api_key=key, max_retries=0) as client,
            pytest.raises(openai.AuthenticationError, match="no such session"),
        ):
            chat(client)
    assert model.asked == []
