"""Reasoning that a program does not send back; see `whet.gateway.sessions`."""

import asyncio

from whet import ScriptedClient
from whet.gateway.sessions import with_reasoning
from whet.gateway.wire import TurnRequest
from whet.types import AssistantMessage, State, ToolCall, UserMessage

CALL = ToolCall(id="c1", name="add", arguments='{"a": 1}')


def recorded(*answers):
    return State(input={}, trajectory=[{"completion": [answer]} for answer in answers])


def reasoning_of(messages):
    return [message.get("reasoning_content") for message in messages if message["role"] == "assistant"]


def test_an_answer_gets_its_reasoning_back():
    state = recorded(AssistantMessage("well", tool_calls=[CALL], reasoning_content="hm"))
    echoed = AssistantMessage("well", tool_calls=[ToolCall(id="c1", name="add", arguments='{"a":1}')])
    restored = with_reasoning([UserMessage("hi"), echoed], state)
    assert reasoning_of(restored) == ["hm"]
    assert restored[1]["tool_calls"] == echoed["tool_calls"]


def test_equal_answers_get_theirs_in_order():
    state = recorded(AssistantMessage("yes", reasoning_content="1"), AssistantMessage("yes", reasoning_content="2"))
    assert reasoning_of(with_reasoning([AssistantMessage("yes"), AssistantMessage("yes")], state)) == ["1", "2"]


def test_what_the_program_wrote_itself_stays_as_it_is():
    state = recorded(AssistantMessage("well", reasoning_content="hm"))
    mine = [AssistantMessage("other"), AssistantMessage("well", reasoning_content="mine")]
    assert reasoning_of(with_reasoning(mine, state)) == [None, "mine"]


def test_without_reasoning_nothing_is_copied():
    messages = [AssistantMessage("well")]
    assert with_reasoning(messages, recorded(AssistantMessage("well"))) is messages


def test_a_session_shows_the_model_what_it_thought(recorded_session):
    seen = []

    def answer(prompt):
        seen.append(prompt)
        return {"content": "well", "reasoning_content": "hm"}

    async def run():
        session = recorded_session(ScriptedClient(answer), "m")
        await session.answer(TurnRequest(model="m", messages=[UserMessage("hi")]))
        echoed = [UserMessage("hi"), AssistantMessage("well"), UserMessage("go on")]
        await session.answer(TurnRequest(model="m", messages=echoed))

    asyncio.run(run())
    assert reasoning_of(seen[1]) == ["hm"]
