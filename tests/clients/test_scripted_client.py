"""A scripted model answers as written, turn by turn in each rollout."""

import asyncio

import pytest

import whet
from whet.types import Response, ResponseMessage, UserMessage

TASK = [{"question": "start"}]


def ask(script, **kwargs):
    return asyncio.run(whet.ScriptedClient(script).get_response([UserMessage("hi")], "m", {}, **kwargs))


def test_a_list_is_answered_in_order_in_every_rollout():
    class Env(whet.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            return [UserMessage("next")]

    env = Env(dataset=TASK * 3, max_turns=2)
    outputs = env.evaluate_sync(whet.ScriptedClient(["a", "b"]), "m", max_concurrent=1)["outputs"]
    assert [[m["content"] for m in output["completion"]] for output in outputs] == [["a", "next", "b"]] * 3


def test_a_function_takes_what_it_names():
    assert ask(lambda prompt, model, sampling_args: f"{prompt[0].content} {model}").message.content == "hi m"


def test_a_single_parameter_of_any_name_is_the_prompt():
    assert ask(lambda shown: shown[0].content).message.content == "hi"


def test_a_function_may_be_async():
    async def script(prompt):
        return "later"

    assert ask(script).message.content == "later"


def test_an_answer_may_be_a_message_with_tool_calls():
    response = ask([{"tool_calls": [{"id": "1", "name": "t", "arguments": "{}"}]}])
    assert response.message.tool_calls[0].name == "t"
    assert response.message.finish_reason == "tool_calls"


def test_an_answer_may_be_cut_off():
    assert ask([{"content": "a", "finish_reason": "length"}]).message.is_truncated


def test_an_answer_may_be_a_whole_response_or_an_exception():
    response = Response(id="mine", model="m", message=ResponseMessage("x"))
    assert ask([response]) is response
    with pytest.raises(whet.OverlongPromptError):
        ask([whet.OverlongPromptError("long")])


def test_one_string_is_not_a_script():
    with pytest.raises(whet.WhetError, match="list of answers"):
        whet.ScriptedClient("hello")


def test_an_answer_that_is_nothing_is_a_model_error():
    with pytest.raises(whet.ModelError, match="int"):
        ask([3])
