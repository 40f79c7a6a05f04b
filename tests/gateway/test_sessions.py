"""Reasoning that a program does not send back; see `whet.gateway.sessions`."""

import asyncio

import pytest

from whet import ScriptedClient
from whet.gateway.interfaces import anthropic_messages, openai_chat
from whet.gateway.sessions import MessagesRead, with_reasoning
from whet.gateway.wire import RequestError, TurnRequest
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


def test_a_conversation_that_is_sent_again_is_read_once():
    read, given = MessagesRead(), [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    first = read.turn(openai_chat, {"model": "m", "messages": given})
    second = read.turn(openai_chat, {"model": "m", "messages": [*map(dict, given), {"role": "user", "content": "c"}]})
    assert [one is other for one, other in zip(first.messages, second.messages, strict=False)] == [True, True]
    changed = [{"role": "user", "content": "z"}, given[1], {"role": "user", "content": "c"}]
    third = read.turn(openai_chat, {"model": "m", "messages": changed})
    assert [message["content"] for message in third.messages] == ["z", "b", "c"]
    assert third.messages[1] is first.messages[1]


def test_what_one_interface_read_is_not_for_another():
    given = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]}
    read = MessagesRead()
    first, second = read.turn(openai_chat, given), read.turn(anthropic_messages, given)
    assert first.messages == second.messages
    assert first.messages[0] is not second.messages[0]


def test_a_malformed_message_after_known_ones_is_refused():
    read, given = MessagesRead(), [{"role": "user", "content": "a"}]
    read.turn(openai_chat, {"model": "m", "messages": given})
    with pytest.raises(RequestError, match=r"messages\[1\]"):
        read.turn(openai_chat, {"model": "m", "messages": [*given, {"role": "nobody"}]})
