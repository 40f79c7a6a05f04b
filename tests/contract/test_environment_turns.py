"""Contract of the environment library: the turns of a rollout.

1. `MultiTurnEnv(max_turns=-1, timeout_seconds=None)`; `env_response` has to be written.
2. setup; until completed: build the prompt, ask the model, record the step, check the stops.
3. The model is shown the conversation so far and what the environment answered.
4. `setup_state`, `get_prompt_messages`, `render_completion` and `add_trajectory_step` may be overridden.
5. Stops are checked in the order of (-priority, name), `has_error` first; the first that holds is `stop_condition`.
6. `@stop` conditions of one's own take part, by priority and name.
7. `max_turns_reached` after that many turns of the model; -1 is no limit.
8. `prompt_too_long` where the prompt does not fit: truncated, and no error.
9. `max_total_completion_tokens_reached` once the model has written that many.
10. `has_final_env_response` ends the rollout, and the response is part of the completion.
11. `timeout_reached` sets timed_out and is not a truncation; what there is so far is kept.
12. `@setup` handlers run before the first turn, `@cleanup` after every rollout, `@teardown` once; by priority, name.
13. `@cleanup` runs once whether the rollout completed, failed, timed out or was cancelled, and to its end.
14. `@cleanup` sees the rendered completion.
15. `@teardown` runs once, however often the environment is closed; one that raises keeps no other from running.
16. `@teardown` runs to its end where closing is cancelled.
17. `@teardown` runs at exit where the environment was not closed.
18. Handlers may be plain or async.
19. `SingleTurnEnv` has one turn and takes no `max_turns`.
20. An environment with a rollout of its own is an `Environment` as well.
21. `num_turns` is a metric of every environment with turns.
"""

import asyncio
import inspect
import subprocess
import sys

import pytest

import whet

ROW = {"question": "q", "answer": "a"}


class Talks(whet.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [whet.UserMessage(f"re: {messages[-1].content}")]


def rollout(env, script):
    client = whet.ScriptedClient(script)
    return asyncio.run(env.rollout(env.get_dataset()[0], client, "m", {}))


def said(messages):
    return [message["content"] for message in messages]


def test_1_the_arguments_and_what_is_abstract():
    parameters = inspect.signature(whet.MultiTurnEnv.__init__).parameters
    assert (parameters["max_turns"].default, parameters["timeout_seconds"].default) == (-1, None)
    with pytest.raises(TypeError, match="env_response"):
        whet.MultiTurnEnv(dataset=[ROW])


def test_2_the_loop():
    events = []

    class Env(Talks):
        async def setup_state(self, state):
            events.append("setup")

        async def get_prompt_messages(self, state):
            events.append("prompt")
            return await super().get_prompt_messages(state)

        async def add_trajectory_step(self, state, trajectory_step):
            events.append("record")
            await super().add_trajectory_step(state, trajectory_step)

        @whet.stop
        async def never(self, state):
            events.append("check")
            return False

    rollout(Env(dataset=[ROW], max_turns=2), lambda: events.append("model") or "x")
    turn = ["prompt", "model", "record"]
    assert events == ["setup", "check", *turn, "check", *turn]  # the last check ends at max_turns_reached


def test_3_the_model_is_shown_the_conversation():
    shown = []
    state = rollout(
        Talks(dataset=[ROW], max_turns=2), lambda prompt, turn: shown.append(said(prompt)) or f"answer {turn}"
    )
    assert shown == [["q"], ["q", "answer 0", "re: answer 0"]]
    assert said(state["completion"]) == ["answer 0", "re: answer 0", "answer 1"]


def test_4_hooks_may_be_overridden():
    class Env(Talks):
        async def setup_state(self, state):
            state["board"] = "empty"

        async def get_prompt_messages(self, state):
            return [whet.UserMessage(f"board: {state['board']} {len(state['trajectory'])}")]

        async def add_trajectory_step(self, state, trajectory_step):
            trajectory_step["reward"] = 0.5
            trajectory_step["extras"]["board"] = state["board"]
            await super().add_trajectory_step(state, trajectory_step)

        async def render_completion(self, state):
            state["completion"] = [step["completion"][0] for step in state["trajectory"]]

    shown = []
    state = rollout(Env(dataset=[ROW], max_turns=2), lambda prompt, turn: shown.append(said(prompt)) or str(turn))
    assert shown == [["board: empty 0"], ["board: empty 1"]]
    assert said(state["completion"]) == ["0", "1"]
    assert [(step["reward"], step["extras"]) for step in state["trajectory"]] == [(0.5, {"board": "empty"})] * 2


@pytest.mark.parametrize(
    ("holds", "first"),
    [
        ({"error": whet.ModelError("down"), "sandbox_failure": "full"}, "has_error"),
        ({"sandbox_failure": "full"}, "sandbox_failed"),
        ({}, "eager"),
        ({"eager": False}, "has_final_env_response"),
        ({"eager": False, "final_env_response": None}, "max_total_completion_tokens_reached"),
        ({"eager": False, "final_env_response": None, "used": 0}, "max_turns_reached"),
        ({"eager": False, "final_env_response": None, "used": 0, "max_turns": -1}, "prompt_too_long"),
    ],
)
def test_5_the_order_of_the_stops(holds, first):
    """All of them hold but those that are taken away; so the next in the order is the one that ends the rollout."""

    class Env(Talks):
        @whet.stop
        async def eager(self, state):
            return bool(state["trajectory"]) and holds.get("eager", True)

        async def add_trajectory_step(self, state, trajectory_step):
            await super().add_trajectory_step(state, trajectory_step)
            state["prompt_too_long"] = True
            state["final_env_response"] = holds.get("final_env_response", [whet.UserMessage("over")])
            state["error"] = holds.get("error")
            state["sandbox_failure"] = holds.get("sandbox_failure")

    used = whet.Usage(prompt_tokens=1, completion_tokens=holds.get("used", 10))
    env = Env(dataset=[ROW], max_turns=holds.get("max_turns", 1))
    env.set_max_total_completion_tokens(5)
    state = rollout(env, lambda: whet.Response("1", "m", whet.ResponseMessage("a"), used))
    assert (state["stop_condition"], state["is_completed"]) == (first, True)


@pytest.mark.parametrize(("priority", "expected"), [(1, "mine"), (0, "max_turns_reached"), (101, "mine")])
def test_6_stops_of_ones_own(priority, expected):
    class Env(Talks):
        @whet.stop(priority=priority)
        async def mine(self, state):
            return len(state["trajectory"]) == 1

    assert rollout(Env(dataset=[ROW], max_turns=1), ["a"])["stop_condition"] == expected


@pytest.mark.parametrize("turns", [1, 3])
def test_7_max_turns(turns):
    state = rollout(Talks(dataset=[ROW], max_turns=turns), lambda: "x")
    assert (len(state["trajectory"]), state["stop_condition"], state["is_truncated"]) == (
        turns,
        "max_turns_reached",
        False,
    )


def test_8_a_prompt_that_is_too_long():
    state = rollout(Talks(dataset=[ROW]), ["a", whet.OverlongPromptError("too long")])
    assert (state["stop_condition"], state["is_truncated"], state["error"]) == ("prompt_too_long", True, None)
    assert said(state["completion"]) == ["a"]


def test_9_the_tokens_a_model_may_write():
    answer = whet.Response("1", "m", whet.ResponseMessage("a"), whet.Usage(prompt_tokens=1, completion_tokens=10))
    env = Talks(dataset=[ROW])
    env.set_max_total_completion_tokens(20)
    state = rollout(env, lambda: answer)
    assert (len(state["trajectory"]), state["stop_condition"]) == (2, "max_total_completion_tokens_reached")


def test_10_a_final_response():
    class Env(whet.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            state["final_env_response"] = [{"role": "user", "content": "game over"}]
            return []

    state = rollout(Env(dataset=[ROW]), lambda: "x")
    assert (state["stop_condition"], said(state["completion"])) == ("has_final_env_response", ["x", "game over"])


def test_11_a_time_out():
    class Env(whet.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            await asyncio.Event().wait()

    state = rollout(Env(dataset=[ROW], timeout_seconds=0.01), lambda: "x")
    assert (state["timed_out"], state["stop_condition"], state["is_completed"]) == (True, "timeout_reached", True)
    assert (state["is_truncated"], state["error"], said(state["completion"])) == (False, None, ["x"])


def test_12_handlers_run_by_priority_then_name():
    order = []

    class Env(whet.SingleTurnEnv):
        @whet.setup
        def start(self, state):
            order.append("setup")

        @whet.cleanup
        def b(self, state):
            order.append("cleanup b")

        @whet.cleanup
        def a(self, state):
            order.append("cleanup a")

        @whet.cleanup(priority=5)
        def first(self, state):
            order.append("cleanup first")

        @whet.teardown(priority=-1)
        def last(self):
            order.append("teardown last")

        @whet.teardown
        def then(self):
            order.append("teardown")

    env = Env(dataset=[ROW])

    async def run():
        await env.evaluate(whet.ScriptedClient(lambda: order.append("turn") or "x"), "m")
        await env.close()

    asyncio.run(run())
    cleanups = ["cleanup first", "cleanup a", "cleanup b"]
    assert order == ["setup", "turn", *cleanups, "teardown", "teardown last"]


@pytest.mark.parametrize("ending", ["completed", "failed", "timed out", "cancelled"])
def test_13_cleanup_runs_once_and_to_its_end(ending):
    cleaned = []

    class Env(Talks):
        @whet.cleanup
        async def clean(self, state):
            for _ in range(3):
                await asyncio.sleep(0)
            cleaned.append(state["example_id"])

    async def answer():
        if ending == "failed":
            raise RuntimeError("down")
        if ending in ("timed out", "cancelled"):
            await asyncio.Event().wait()
        return "x"

    async def run():
        env = Env(dataset=[ROW], max_turns=1, timeout_seconds=0.01 if ending == "timed out" else None)
        task = asyncio.ensure_future(env.rollout(env.get_dataset()[0], whet.ScriptedClient(answer), "m", {}))
        if ending != "cancelled":
            await env.cleanup(await task)
            return
        for _ in range(10):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert cleaned == [0]


def test_14_cleanup_sees_the_completion():
    seen = []

    class Env(Talks):
        @whet.cleanup(priority=99)
        async def look(self, state):
            seen.append(said(state["completion"]))

    rollout(Env(dataset=[ROW], max_turns=1), ["x"])
    assert seen == [["x"]]


def test_15_teardown_runs_once_and_all_of_it():
    order = []

    class Rubric(whet.Rubric):
        @whet.teardown
        async def of_the_rubric(self):
            order.append("rubric")
            raise OSError("still open")

    class Env(whet.SingleTurnEnv):
        @whet.teardown(priority=1)
        async def breaks(self):
            order.append("breaks")
            raise ValueError("broken")

        @whet.teardown
        async def last(self):
            order.append("last")

    env = Env(dataset=[ROW], rubric=Rubric())

    async def run():
        with pytest.raises(OSError, match="still open") as caught:
            await env.close()
        assert "ValueError: broken" in caught.value.__notes__[0]
        await env.close()

    asyncio.run(run())
    assert order == ["rubric", "breaks", "last"]


def test_16_teardown_outlives_a_cancellation():
    done = []

    class Env(whet.SingleTurnEnv):
        @whet.teardown
        async def slow(self):
            for _ in range(5):
                await asyncio.sleep(0)
            done.append(True)

    async def run():
        task = asyncio.ensure_future(Env(dataset=[ROW]).close())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert done == [True]


def test_17_teardown_at_exit():
    script = """
import whet
class Env(whet.SingleTurnEnv):
    @whet.teardown
    async def say(self):
        print("closed", flush=True)
env = Env(dataset=[{"question": "q"}])
closed = Env(dataset=[{"question": "q"}])
import asyncio
asyncio.run(closed.close())
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "closed\nclosed\n"


def test_18_handlers_may_be_plain_or_async():
    seen = []

    class Env(Talks):
        @whet.stop
        def plain_stop(self, state):
            return False

        @whet.stop
        async def async_stop(self, state):
            return len(state["trajectory"]) > 0

        @whet.setup
        async def async_setup(self, state):
            seen.append("setup")

        @whet.cleanup
        def plain_cleanup(self, state):
            seen.append("cleanup")

    assert rollout(Env(dataset=[ROW]), ["x"])["stop_condition"] == "async_stop"
    assert seen == ["setup", "cleanup"]


def test_19_a_single_turn():
    state = rollout(whet.SingleTurnEnv(dataset=[ROW]), ["x", "y"])
    assert (len(state["trajectory"]), state["stop_condition"]) == (1, "max_turns_reached")
    with pytest.raises(whet.WhetError, match="SingleTurnEnv has one turn"):
        whet.SingleTurnEnv(dataset=[ROW], max_turns=2)


def test_20_a_rollout_of_its_own():
    class Own(whet.Environment):
        async def rollout(self, input, client, model, sampling_args=None):
            state = await self.init_state(input, client, model, sampling_args)
            response = await self.get_model_response(state, state["prompt"])
            state["completion"] = [whet.AssistantMessage(response.message.content)]
            state["is_completed"] = True
            return state

    env = Own(dataset=[ROW], rubric=whet.Rubric([lambda completion: float(completion[0].content == "x")]))
    (output,) = env.evaluate_sync(whet.ScriptedClient(["x"]), "m")["outputs"]
    assert (output["reward"], output["completion"]) == (1.0, [{"role": "assistant", "content": "x"}])


def test_21_the_number_of_turns_is_a_metric():
    (output,) = Talks(dataset=[ROW], max_turns=3).evaluate_sync(whet.ScriptedClient(lambda: "x"), "m")["outputs"]
    assert (output["metrics"]["num_turns"], output["num_turns"]) == (3.0, 3.0)
