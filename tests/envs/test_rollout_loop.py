"""The rollout loop: turns, stops, errors, time-outs, clean-up, and the state it leaves."""

import asyncio

import pytest

import whet
from whet.types import AssistantMessage, Response, ResponseMessage, ResponseTokens, Usage, UserMessage

TASK = [{"question": "start", "answer": "a", "info": {"n": 1}}]


class Counter(whet.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [UserMessage(f"turn {len(state['trajectory'])}")]


def rollout(env, script, sampling_args=None, **row):
    client = script if isinstance(script, whet.Client) else whet.ScriptedClient(script)
    return asyncio.run(env.rollout({**env.get_dataset()[0], **row}, client, "m", sampling_args or {}))


def answer(text, tokens=None, **usage):
    message = ResponseMessage(text, tokens=tokens, is_truncated=usage.pop("is_truncated", False))
    return Response(id="1", model="m", message=message, usage=Usage(**usage) if usage else None)


def test_a_single_turn_is_one_step():
    state = rollout(whet.SingleTurnEnv(dataset=TASK, system_prompt="be brief"), ["hello"])
    assert [message.role for message in state["prompt"]] == ["system", "user"]
    assert state["completion"] == [AssistantMessage("hello")]
    assert (state["is_completed"], state["stop_condition"]) == (True, "max_turns_reached")
    assert (state["is_truncated"], state["error"], state["reward"]) == (False, None, None)


def test_environment_and_model_take_turns():
    state = rollout(Counter(dataset=TASK, max_turns=3), ["a", "b", "c"])
    assert [message.content for message in state["completion"]] == ["a", "turn 1", "b", "turn 2", "c"]
    assert [len(step["prompt"]) for step in state["trajectory"]] == [1, 3, 5]


def test_plain_dicts_from_an_environment_become_messages():
    class Plain(Counter):
        def env_response(self, messages, state, **kwargs):
            return [{"role": "user", "content": "plain"}]

    state = rollout(Plain(dataset=TASK, max_turns=2), ["a", "b"])
    assert state["completion"][1].content == "plain"


def test_a_final_env_response_ends_the_rollout_and_is_part_of_it():
    class Final(Counter):
        async def env_response(self, messages, state, **kwargs):
            state["final_env_response"] = [{"role": "user", "content": "you win"}]
            return state["final_env_response"]

    state = rollout(Final(dataset=TASK), ["a", "never"])
    assert state["stop_condition"] == "has_final_env_response"
    assert [message.content for message in state["completion"]] == ["a", "you win"]
    assert len(state["trajectory"]) == 1


def test_stops_are_checked_by_priority_then_name():
    class Stops(Counter):
        @whet.stop
        def b_plain(self, state):
            return True

        @whet.stop(priority=5)
        async def z_first(self, state, env):
            return env is self and len(state["trajectory"]) == 1

    state = rollout(Stops(dataset=TASK), ["a"])
    assert state["stop_condition"] == "b_plain"  # before the first turn only the plain one holds


def test_setup_runs_before_the_first_turn():
    class Sets(Counter):
        @whet.setup
        def first(self, state):
            state["order"] = ["hook"]

        async def setup_state(self, state):
            state["order"].append("setup_state")

    assert rollout(Sets(dataset=TASK, max_turns=1), ["a"])["order"] == ["hook", "setup_state"]


@pytest.mark.parametrize("hook", ["setup_state", "env_response", "add_trajectory_step", "custom_stop", "a_cleanup"])
def test_whatever_hook_raises_the_rollout_is_errored_and_says_where(hook):
    class Raises(Counter):
        async def setup_state(self, state):
            self.maybe("setup_state")

        async def env_response(self, messages, state, **kwargs):
            self.maybe("env_response")
            return []

        async def add_trajectory_step(self, state, step):
            self.maybe("add_trajectory_step")
            await super().add_trajectory_step(state, step)

        @whet.stop
        async def custom_stop(self, state):
            self.maybe("custom_stop")

        @whet.cleanup
        async def a_cleanup(self, state):
            self.maybe("a_cleanup")

        def maybe(self, here):
            if here == hook:
                raise KeyError("broken hook")

    state = rollout(Raises(dataset=TASK, max_turns=2), ["a", "b"])
    assert isinstance(state["error"], whet.EnvError)
    assert "KeyError: 'broken hook'" in str(state["error"])
    assert "test_rollout_loop.py" in str(state["error"])
    assert state["is_completed"]
    assert state["completion"] is not None


def test_a_failing_model_is_a_model_error():
    state = rollout(whet.SingleTurnEnv(dataset=TASK), [RuntimeError("connection lost")])
    assert isinstance(state["error"], whet.ModelError)
    assert state["stop_condition"] == "has_error"
    assert state["completion"] == []


def test_a_prompt_that_is_too_long_truncates_without_an_error():
    state = rollout(Counter(dataset=TASK), ["a", whet.OverlongPromptError("no room")])
    assert (state["stop_condition"], state["is_truncated"], state["error"]) == ("prompt_too_long", True, None)
    assert [message.content for message in state["completion"]] == ["a"]


def test_a_mistake_of_the_users_is_raised():
    with pytest.raises(whet.WhetError, match="script has 1 answers"):
        rollout(Counter(dataset=TASK), ["a"])


def test_a_time_out_ends_the_rollout_and_keeps_what_there_is():
    cleaned = []

    class Waits(Counter):
        async def env_response(self, messages, state, **kwargs):
            await asyncio.Event().wait()

        @whet.cleanup
        async def note(self, state):
            cleaned.append(state["stop_condition"])

    state = rollout(Waits(dataset=TASK, timeout_seconds=0.01), ["a"])
    assert (state["timed_out"], state["stop_condition"], state["is_truncated"]) == (True, "timeout_reached", False)
    assert [message.content for message in state["completion"]] == ["a"]
    assert cleaned == ["timeout_reached"]


def test_a_time_out_of_the_environments_own_is_its_error():
    class TimesOut(Counter):
        async def env_response(self, messages, state, **kwargs):
            raise TimeoutError("my own")

    state = rollout(TimesOut(dataset=TASK, timeout_seconds=60), ["a"])
    assert "my own" in str(state["error"])
    assert "timed_out" not in state


def test_cleanup_runs_to_its_end_when_the_rollout_is_cancelled():
    done = []

    class Slow(Counter):
        async def env_response(self, messages, state, **kwargs):
            await asyncio.Event().wait()

        @whet.cleanup
        async def slow(self, state):
            for _ in range(5):
                await asyncio.sleep(0)
            done.append(state["completion"][0].content)

    class Releasing(whet.ScriptedClient):
        async def release(self, state):
            done.append("released")

    async def run():
        env = Slow(dataset=TASK)
        task = asyncio.ensure_future(env.rollout(env.get_dataset()[0], Releasing(["a"]), "m", {}))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # once more, in the middle of the clean-up
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert done == ["a", "released"]


def test_cleanup_handlers_run_once_by_priority_and_all_of_them():
    order = []

    class Cleans(Counter):
        @whet.cleanup(priority=1)
        async def first(self, state):
            order.append("first")
            raise RuntimeError("in cleanup")

        @whet.cleanup
        async def second(self, state):
            order.append("second")

    env = Cleans(dataset=TASK, max_turns=1)
    state = rollout(env, ["a"])
    asyncio.run(env.cleanup(state))
    assert order == ["first", "second"]


@pytest.mark.parametrize("script", [["a"], [RuntimeError("gone")]])
def test_a_client_is_told_when_the_rollout_is_over(script):
    released = []

    class Releasing(whet.ScriptedClient):
        async def release(self, state):
            released.append(state["trajectory_id"])

    state = rollout(whet.SingleTurnEnv(dataset=TASK), Releasing(script))
    assert released == [state["trajectory_id"]]


def test_closing_runs_teardown_once():
    closed = []

    class Closes(Counter):
        @whet.teardown
        async def end(self):
            closed.append(1)

    env = Closes(dataset=TASK)
    asyncio.run(env.close())
    asyncio.run(env.close())
    assert closed == [1]


def test_the_client_gets_model_tools_sampling_args_and_state():
    seen = {}

    def script(prompt, model, tools, sampling_args, state):
        seen.update(model=model, tools=tools, sampling_args=sampling_args, id=state["trajectory_id"])
        return "x"

    env = whet.SingleTurnEnv(dataset=TASK)
    state = rollout(env, script, {"temperature": 0.5}, trajectory_id="mine")
    assert seen == {"model": "m", "tools": None, "sampling_args": {"temperature": 0.5}, "id": "mine"}
    assert "trajectory_id" not in state["input"]


def test_a_rollout_writes_into_a_copy_of_its_row():
    class Writes(Counter):
        async def setup_state(self, state):
            state["info"]["n"] = 2
            state["prompt"][0]["content"] = "changed"

    env = Writes(dataset=TASK, max_turns=1)
    rollout(env, ["a"])
    assert env.get_dataset()[0]["info"] == {"n": 1}
    assert env.get_dataset()[0]["prompt"][0].content == "start"


def test_info_as_json_text_is_read():
    env = whet.SingleTurnEnv(dataset=[{"question": "?", "info": '{"n": 3}'}])
    assert rollout(env, ["a"])["info"] == {"n": 3}


def test_tools_may_come_with_the_row():
    tool = {"name": "t", "description": "d", "parameters": {"type": "object", "properties": {}}}
    env = whet.SingleTurnEnv(dataset=[{"question": "?", "info": {"tool_defs": [tool]}}])
    assert rollout(env, ["a"])["tool_defs"] == [tool]


def test_usage_adds_up_and_limits_the_tokens_a_model_may_write():
    env = Counter(dataset=TASK)
    env.set_max_total_completion_tokens(5)
    script = [answer("a", prompt_tokens=10, completion_tokens=3)] * 3
    state = rollout(env, script)
    assert state["stop_condition"] == "max_total_completion_tokens_reached"
    assert state["usage"] == {"input_tokens": 20.0, "output_tokens": 6.0}


def test_a_turn_cut_off_by_the_model_truncates_the_rollout():
    assert rollout(whet.SingleTurnEnv(dataset=TASK), [answer("a", is_truncated=True)])["is_truncated"]


def tokens(prompt, completion):
    return ResponseTokens(
        list(range(prompt)), list(range(completion)), [-0.5] * completion, policy_version=[[3, 2], [4, completion - 2]]
    )


def test_tokens_flow_into_the_step_untouched():
    step = rollout(whet.SingleTurnEnv(dataset=TASK), [answer("a", tokens(4, 5))])["trajectory"][0]
    assert step["tokens"]["prompt_ids"] == [0, 1, 2, 3]
    assert step["tokens"]["policy_version"] == [[3, 2], [4, 3]]
    assert (step["tokens"]["is_truncated"], step["tokens"]["overlong_prompt"]) == (False, False)


def test_tokens_beyond_max_seq_len_are_cut_off():
    env = whet.SingleTurnEnv(dataset=TASK, max_seq_len=7)
    state = rollout(env, [answer("a", tokens(4, 5))])
    step = state["trajectory"][0]["tokens"]
    assert (step["completion_ids"], step["completion_mask"]) == ([0, 1, 2], [1, 1, 1])
    assert (len(step["completion_logprobs"]), step["policy_version"]) == (3, [[3, 2], [4, 1]])
    assert state["is_truncated"]


def test_an_overlong_prompt_keeps_no_completion():
    step = rollout(whet.SingleTurnEnv(dataset=TASK, max_seq_len=3), [answer("a", tokens(4, 5))])["trajectory"][0]
    assert (step["tokens"]["prompt_ids"], step["tokens"]["completion_ids"]) == ([0, 1, 2], [])
    assert (step["tokens"]["overlong_prompt"], step["tokens"]["policy_version"]) == (True, [])


def test_reasoning_and_tool_calls_stay_in_the_conversation():
    fields = {
        "content": None,
        "reasoning_content": "hmm",
        "tool_calls": [{"id": "1", "function": {"name": "t", "arguments": {"x": 1}}}],
    }
    message = rollout(whet.SingleTurnEnv(dataset=TASK), [fields])["completion"][0]
    assert (message.reasoning_content, message.content) == ("hmm", None)
    assert message.tool_calls == [{"id": "1", "name": "t", "arguments": '{"x": 1}'}]
    assert "finish_reason" not in message


def test_a_conversation_that_is_not_one_growing_list_may_be_plain_dicts():
    class Forgets(Counter):
        async def get_prompt_messages(self, state):
            return [{"role": "user", "content": f"only this {len(state['trajectory'])}"}]

        async def render_completion(self, state):
            state["completion"] = [step["completion"][0] for step in state["trajectory"]]

    state = rollout(Forgets(dataset=TASK, max_turns=2), lambda prompt: prompt[0].content)
    assert [message.content for message in state["completion"]] == ["only this 0", "only this 1"]
