"""Programs: their requests are the turns of an ordinary rollout, and they end with it."""

import asyncio
import threading

import pytest

import whet
from whet.errors import ConfigError


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def env_of(program, source, **settings) -> whet.Env:
    return whet.Env(whet.Taskset(source=source), whet.Harness(program=program, **settings))


async def two_turns(task, state, session):
    messages = [*state["prompt"]]
    messages.append(await session.ask(messages))
    messages.append(user("And now?"))
    state["answer"] = (await session.ask(messages)).content


def test_what_a_program_asks_are_turns_with_their_messages_and_times(rows, roll, texts) -> None:
    (state,) = roll(env_of(two_turns, rows()), ["a", "b"])
    assert texts(state["prompt"] + state["completion"]) == ["What is 0?", "a", "And now?", "b"]
    assert (state["answer"], state["stop_condition"], state["num_model_requests"]) == ("b", "program_completed", 2)
    assert len(state["timing"].model.spans) == 2
    assert state["metrics"]["num_turns"] == 2


def test_a_plain_program_waits_for_its_model_in_a_thread_of_its_own(rows, roll) -> None:
    def program(task, state, session):
        state["thread"] = threading.current_thread().name
        return {"answer": session.wait(session.ask(state["prompt"])).content}

    states = roll(env_of(program, rows()), lambda prompt: "a", size=40)
    assert {state["answer"] for state in states} == {"a"}
    assert all(state["thread"] == "whet program program" for state in states)


def test_waiting_on_the_event_loop_is_refused_and_not_a_deadlock(rows, roll) -> None:
    async def program(state, session):
        session.wait(session.ask(state["prompt"]))

    (state,) = roll(env_of(program, rows()), ["a"])
    assert "await session.ask" in str(state["error"])


@pytest.mark.parametrize("sync", [False, True])
def test_the_openai_package_asks_the_rollout_s_model(rows, roll, sync) -> None:
    pytest.importorskip("openai")
    tool = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}

    async def asynchronous(task, state):
        client = state.get_client()
        return await client.chat.completions.create(model="x", messages=[user("Hi")], tools=[tool], temperature=0)

    def plain(task, state):
        return state.get_client(sync=True).chat.completions.create(model="x", messages=[user("Hi")], tools=[tool])

    def keep(state, response) -> None:
        message = response.choices[0].message
        state["seen"] = [message.content, message.tool_calls[0].function.name, response.choices[0].finish_reason]

    async def program(task, state):
        keep(state, await asynchronous(task, state))

    def sync_program(task, state):
        keep(state, plain(task, state))

    told = []

    def script(tools):
        told.append([tool["name"] for tool in tools])
        return {"content": "Yes.", "tool_calls": [{"id": "1", "name": "look", "arguments": "{}"}]}

    (state,) = roll(env_of(sync_program if sync else program, rows()), script)
    assert (state["error"], state["seen"], told) == (None, ["Yes.", "look", "tool_calls"], [["look"]])
    assert len(state["trajectory"]) == 1


def test_what_a_session_cannot_do_is_refused_by_the_openai_client(rows, roll) -> None:
    openai = pytest.importorskip("openai")

    async def program(state):
        client = state.get_client()
        state["refused"] = []
        for request in (
            client.chat.completions.create(model="x", messages=[user("Hi")], stream=True),
            client.chat.completions.create(model="x", messages=[user("Hi")], n=2),
            client.chat.completions.create(model="x", messages=[{"role": "nobody"}]),
            client.models.list(),
        ):
            try:
                await request
            except openai.BadRequestError as error:
                state["refused"].append(str(error))

    (state,) = roll(env_of(program, rows()), ["never"])
    assert state["error"] is None
    for text, said in zip(state["refused"], ["stream", "one answer", "nobody", "/models"], strict=True):
        assert said in text
    assert state["trajectory"] == []


def test_clients_of_other_interfaces_are_refused(rows) -> None:
    state = whet.TaskState.for_task({"prompt": []})
    with pytest.raises(whet.Error, match="only a program has an address of its model, while it runs"):
        state.get_endpoint_config()
    with pytest.raises(ConfigError, match="anthropic_messages"):
        state.get_client("anthropic_messages")


def test_a_program_need_not_ask_a_model(rows, roll) -> None:
    def right(task, state) -> float:
        return float(state["answer"] == task["answer"])

    async def replay(task, state):
        state["answer"] = task["answer"]
        state["completion"] = [{"role": "assistant", "content": task["answer"]}]
        return state

    env = whet.Env(whet.Taskset(source=[{"answer": "7"}], rewards=[right]), whet.Harness(program=replay))
    (state,) = roll(env, [])
    assert (state["reward"], state["completion"][0].content, state["trajectory"]) == (1.0, "7", [])


def test_a_program_has_the_tools_and_the_user_of_the_taskset(rows, roll, texts) -> None:
    def double(number: int, task) -> int:
        """Double."""
        return 2 * number + int(task["answer"])

    async def program(state, session):
        state["doubled"] = await state.get_tools()["double"](number=4)
        state["heard"] = await session.ask_user([user("Anything else?")])
        state["told"] = (await session.ask(state["prompt"])).content
        state["untold"] = (await session.ask(state["prompt"], tools=[])).content

    taskset = whet.Taskset(source=rows(), toolsets=[double], user=lambda transcript: [user("No.")])
    (state,) = roll(whet.Env(taskset, whet.Harness(program=program)), lambda tools: str(len(tools or [])))
    assert (state["doubled"], texts(state["heard"]), state["told"], state["untold"]) == (8, ["No."], "1", "0")


def test_several_questions_at_once_are_asked_one_after_another(rows, roll) -> None:
    async def program(state, session):
        asked = [session.ask([user(str(number))]) for number in range(5)]
        state["answers"] = [message.content for message in await asyncio.gather(*asked)]

    (state,) = roll(env_of(program, rows()), lambda prompt, turn: f"{prompt[0].content}/{turn}")
    assert state["answers"] == ["0/0", "1/1", "2/2", "3/3", "4/4"]


def test_an_exception_in_a_program_fails_its_rollout_alone(rows, roll) -> None:
    async def program(task, state, session):
        answer = await session.ask(state["prompt"])
        if answer.content == "bad":
            raise ValueError("no good")

    answers = iter(["bad", "good", "good"])
    states = roll(env_of(program, rows()), lambda prompt: next(answers), size=3)
    assert [state["error"] is None for state in states] == [False, True, True]
    assert "program 'program' raised ValueError: no good" in str(states[0]["error"])
    assert (states[0]["reward"], states[0]["stop_condition"]) == (None, "has_error")


@pytest.mark.parametrize("result", [7, ["answer"], whet.TaskState.for_task({"prompt": []})])
def test_a_program_that_returns_something_else_fails(rows, roll, result) -> None:
    (state,) = roll(env_of(lambda: result, rows()), [])
    assert "should return nothing" in str(state["error"])


@pytest.mark.parametrize("plain", [False, True])
def test_a_model_that_fails_ends_the_program(rows, roll, plain) -> None:
    ended = threading.Event()

    async def program(state, session):
        try:
            await session.ask(state["prompt"])
        finally:
            ended.set()

    def plain_program(state, session):
        try:
            session.wait(session.ask(state["prompt"]))
        finally:
            ended.set()

    (state,) = roll(env_of(plain_program if plain else program, rows()), [whet.ModelError("down")])
    assert isinstance(state["error"], whet.ModelError)
    assert ended.wait(60)


def test_a_prompt_that_is_too_long_ends_the_program_as_in_any_rollout(rows, roll) -> None:
    (state,) = roll(env_of(two_turns, rows()), ["a", whet.OverlongPromptError("too long")])
    assert (state["stop_condition"], state["is_truncated"], state["error"]) == ("prompt_too_long", True, None)


def test_a_program_is_cancelled_at_the_time_limit(rows, roll) -> None:
    ended = []

    async def program():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    env = whet.Env(whet.Taskset(source=rows()), whet.Harness(program=program), timeout_seconds=0.02)
    (state,) = roll(env, [])
    assert (state["stop_condition"], ended) == ("timeout_reached", ["ended"])


def test_a_program_that_cancels_itself_fails_its_rollout_and_nothing_else(rows, roll) -> None:
    async def program():
        asyncio.current_task().cancel()
        await asyncio.Event().wait()

    states = roll(env_of(program, rows()), [], size=2)
    assert all("CancelledError of its own" in str(state["error"]) for state in states)


@pytest.mark.parametrize(("settings", "turns"), [({}, 12), ({"max_turns": 3}, 3)])
def test_a_program_is_limited_only_where_somebody_says_so(rows, roll, settings, turns) -> None:
    async def program(state, session):
        state["limit"] = state.get_max_turns(12)
        for _ in range(12):
            await session.ask(state["prompt"])

    (state,) = roll(env_of(program, rows(), **settings), lambda: "a")
    assert (len(state["trajectory"]), state["limit"]) == (turns, turns)
    assert state["stop_condition"] == ("max_turns_reached" if settings else "program_completed")


def test_a_stop_ends_a_program_at_its_next_question(rows, roll) -> None:
    def enough(task, state) -> bool:
        return state.get("answer") is not None

    async def program(state, session):
        state["answer"] = (await session.ask(state["prompt"])).content
        await session.ask(state["prompt"])

    (state,) = roll(env_of(program, rows(), stops=[enough]), ["a", "never"])
    assert (state["stop_condition"], state["answer"], len(state["trajectory"])) == ("enough", "a", 1)


def test_a_program_can_be_named_in_a_table(rows, roll, tmp_path, monkeypatch) -> None:
    (tmp_path / "made_up_program.py").write_text("def run(state):\n    state['answer'] = 'ran'\n")
    monkeypatch.syspath_prepend(tmp_path)
    (state,) = roll(whet.Env(whet.Taskset(source=rows()), whet.Harness(program={"fn": "made_up_program:run"})), [])
    assert state["answer"] == "ran"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ({"fn": "math:sqrt", "sandbox": {"image": "x"}}, "Toolset(sandbox=...)"),
        ({"fn": "math:sqrt", "files": {"a": "b"}}, "no effect"),
        ({"fn": "math:sqrt", "tools": "mcp"}, "whet does not have that"),
        ({"fun": "math:sqrt"}, "Did you mean 'fn'"),
        ({}, "give one of"),
        (7, "should be a function or a table"),
    ],
)
def test_a_program_that_cannot_be_run_is_refused_when_it_is_given(program, said) -> None:
    with pytest.raises(ConfigError) as caught:
        whet.Harness(program=program)
    assert said in str(caught.value)


def test_the_chat_loop_can_be_asked_for_by_name(rows, roll) -> None:
    (state,) = roll(whet.Env(whet.Taskset(source=rows()), whet.Harness(program={"base": True})), ["a"])
    assert state["completion"][0].content == "a"


def test_a_harness_with_a_run_of_its_own_is_refused() -> None:
    class Own(whet.Harness):
        async def run(self, task, state=None):
            return state

    with pytest.raises(ConfigError, match="make it a program"):
        Own()


def test_a_method_of_a_harness_can_be_its_program(rows, roll) -> None:
    class Polite(whet.Harness):
        def __init__(self, **kwargs):
            super().__init__(program=self.attempt, **kwargs)

        async def attempt(self, state, session):
            state["answer"] = (await session.ask([*state["prompt"], user("Please.")])).content

    (state,) = roll(whet.Env(whet.Taskset(source=rows()), Polite()), lambda prompt: prompt[-1].content)
    assert state["answer"] == "Please."
