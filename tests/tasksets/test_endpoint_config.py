"""`state.get_endpoint_config`: a library that asks its model by HTTP, in a program that is a function."""

import asyncio
import json
import urllib.error
import urllib.request

import pytest

import whet

pytest.importorskip("uvicorn")


def taskset() -> whet.Taskset:
    return whet.Taskset(source=[{"question": "one", "answer": "1"}, {"question": "two", "answer": "2"}])


def roll(program, *, answers=None, **settings):
    """The states of both tasks, attempted concurrently, and the environment closed."""
    env = whet.Env(taskset(), whet.Harness(program=program, **settings))
    client = whet.ScriptedClient(answers or (lambda state, turn: f"{state['task']['question']} {turn}"))

    async def run():
        try:
            rows = list(env.get_dataset())
            return [await env.run_group([row], client, "m", gen_sampling_args={}) for row in rows]
        finally:
            await env.close()

    return [state for (state,) in asyncio.run(run())]


def post(address: str, key: str, body: dict, header: str = "Authorization") -> dict:
    value = f"Bearer {key}" if header == "Authorization" else key
    headers = {"Content-Type": "application/json", header: value}
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def test_requests_of_an_openai_client_are_turns_of_the_rollout():
    openai = pytest.importorskip("openai")

    async def program(task, state):
        config = state.get_endpoint_config(api="chat")
        assert config == state.get_endpoint_config()
        async with openai.AsyncOpenAI(base_url=config["api_base"], api_key=config["api_key"]) as client:
            messages = [{"role": "user", "content": task["question"]}]
            for _ in range(2):
                said = await client.chat.completions.create(model=config["model"], messages=messages)
                messages += [said.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "more"}]
        state["said"] = said.choices[0].message.content

    states = roll(program)
    assert [state["error"] for state in states] == [None, None]
    assert [state["said"] for state in states] == ["one 1", "two 1"]
    assert [len(state["trajectory"]) for state in states] == [2, 2]


@pytest.mark.parametrize(
    ("api", "kind", "path", "text"),
    [
        ("chat", "openai_chat_completions", "/chat/completions", lambda b: b["choices"][0]["message"]["content"]),
        ("responses", "openai_responses", "/responses", lambda b: b["output"][0]["content"][0]["text"]),
        ("anthropic_messages", "anthropic_messages", "/v1/messages", lambda b: b["content"][0]["text"]),
    ],
)  # fmt: skip
def test_a_plain_function_asks_by_each_interface(api, kind, path, text):
    def program(task, state):
        config = state.get_endpoint_config(api)
        state["kind"] = config["api_client_type"]
        asked = [{"role": "user", "content": task["question"]}]
        body = {"model": config["model"], "max_tokens": 9, "messages": asked}
        if api == "responses":
            body = {"model": config["model"], "input": asked}
        header = "x-api-key" if "anthropic" in kind else "Authorization"
        state["said"] = text(post(config["base_url"] + path, config["api_key"], body, header))

    states = roll(program)
    assert [state["error"] for state in states] == [None, None]
    assert [(state["said"], state["kind"]) for state in states] == [("one 0", kind), ("two 0", kind)]


def test_the_address_is_one_rollouts_and_ends_with_it():
    kept = []

    def program(task, state):
        config = state.get_endpoint_config()
        body = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
        for earlier in kept:
            for key in (earlier["api_key"], config["api_key"]):
                with pytest.raises(urllib.error.HTTPError) as refused:
                    post(earlier["base_url"] + "/chat/completions", key, body)
                assert refused.value.code in (401, 403, 404)
        kept.append(config)

    states = roll(program)
    assert [state["error"] for state in states] == [None, None]
    assert [len(state["trajectory"]) for state in states] == [0, 0]
    assert kept[0]["base_url"] != kept[1]["base_url"]


def test_an_interface_that_there_is_not_is_a_mistake_that_names_those_there_are():
    def program(state):
        state.get_endpoint_config("grpc")

    with pytest.raises(whet.WhetError, match="no api 'grpc'; there are: chat, chat_completions"):
        roll(program)
