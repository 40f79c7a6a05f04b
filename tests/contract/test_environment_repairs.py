"""The repairs of the 0.1 environment contract, by number. A change here changes what environments may rely on.

1. Advantage is computed once, after all rubrics of the group, from the total reward.
2. `{question}` in a judge prompt is the last user message, and a judge outage is an error.
3. A reward function that raises makes the rollout errored, out of averages' numerator and denominator; never a 0.
4. An exception in `env_response` or a tool fails that rollout alone; the run continues.
5. The default rubric works with `independent_scoring`.
6. An environment can be made on any thread; constructors install no signal handlers; importing has no side effects.
7. A misspelt constructor argument is an error that suggests the right one, in code that imports whet; in code that
   imports `verifiers` it becomes an attribute, with one warning (`tests/compat/test_alias.py`).
8. Mixed-type `info` values survive unchanged.
9. Concurrency is counted per rollout; a finished rollout frees its place while its siblings go on or are scored.
10. `get_dataset(seed=...)` does not reorder the environment's own dataset.
11. A call of a tool that there is not tells the model which there are.
12. What a model writes for a hidden argument of a tool does not reach the environment.
"""

import asyncio
import signal
import subprocess
import sys
import threading

import pytest

import whet
from whet.rollouts.groups import run_group


def tasks(count=2):
    return [{"question": str(index), "answer": str(index)} for index in range(count)]


def echo(prompt):
    return prompt[-1].content


def right(completion, answer):
    return float(completion[-1].content == answer)


def test_repair_1_the_advantage_comes_from_the_total_reward_of_all_rubrics():
    class Env(whet.SingleTurnEnv):
        pass

    answers = iter(["0", "long answer"])
    env = Env(dataset=tasks(1), rubric=whet.Rubric([right]))
    env.add_rubric(whet.Rubric([lambda completion: float(len(completion[-1].content))]))
    client = whet.ScriptedClient(lambda prompt: next(answers))
    states = asyncio.run(run_group(env, [env.get_dataset()[0]] * 2, client, "m", {}))
    assert [state["reward"] for state in states] == [2.0, 11.0]
    assert [state["advantage"] for state in states] == [-4.5, 4.5]
    assert [state["trajectory"][0]["advantage"] for state in states] == [-4.5, 4.5]


def test_repair_2_the_question_for_a_judge_is_the_last_user_message_and_an_outage_no_reward():
    asked = []

    def judge_of(prompt):
        asked.append(prompt[0].content)
        return whet.ModelError("down") if len(asked) > 1 else "yes"

    async def correct(judge, prompt, completion, answer, state):
        return float(await judge(prompt, completion, answer, state) == "yes")

    rubric = whet.JudgeRubric(judge_client=whet.ScriptedClient(judge_of), judge_prompt="{question}")
    rubric.add_reward_func(correct)
    opened = [{"role": "user", "content": "the question"}, {"role": "assistant", "content": "Well,"}]
    env = whet.SingleTurnEnv(dataset=[{"prompt": opened, "answer": str(i)} for i in range(2)], rubric=rubric)
    results = env.evaluate_sync(whet.ScriptedClient(["x"]), "m")
    assert asked == ["the question", "the question"]
    assert [output["reward"] for output in results["outputs"]] == [1.0, None]
    assert (results["metadata"]["avg_reward"], results["metadata"]["num_errors"]) == (1.0, 1)


@pytest.mark.parametrize("value", ["raises", float("nan"), float("inf"), "1.0", None, [1.0]])
def test_repair_3_a_reward_that_is_no_number_makes_the_rollout_errored(value):
    def judge_of_answers(answer):
        if answer == "0":
            return 1.0
        if value == "raises":
            raise ValueError("no such judge")
        return value

    env = whet.SingleTurnEnv(dataset=tasks(2), rubric=whet.Rubric([judge_of_answers]))
    results = env.evaluate_sync(whet.ScriptedClient(echo), "m")
    good, bad = results["outputs"]
    assert (good["reward"], good["error"]) == (1.0, None)
    assert bad["reward"] is None
    assert bad["error"]["error"] == "RewardError"
    assert "judge_of_answers" in bad["error"]["error_chain_repr"]
    assert results["metadata"]["avg_reward"] == 1.0
    assert (results["metadata"]["avg_error"], results["metadata"]["num_errors"]) == (0.5, 1)


@pytest.mark.parametrize("kind", ["env_response", "tool host"])
def test_repair_4_an_exception_in_the_environment_fails_that_rollout_alone(kind):
    class Breaks(whet.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            if state["answer"] == "1":
                raise ZeroDivisionError("in the environment")
            return [whet.UserMessage("go on")]

    class HostBreaks(whet.ToolEnv):
        async def env_response(self, messages, state, **kwargs):
            if state["answer"] == "1":
                raise ConnectionError("in the environment")
            return await super().env_response(messages, state, **kwargs)

    call = {"tool_calls": [{"id": "1", "name": "tool", "arguments": "{}"}]}

    def tool() -> str:
        """A tool."""
        return "result"

    if kind == "env_response":
        env, client = Breaks(max_turns=2, dataset=tasks(3)), whet.ScriptedClient(["a", "b"])
    else:
        env, client = HostBreaks(tools=[tool], dataset=tasks(3)), whet.ScriptedClient([call, "done"])
    outputs = env.evaluate_sync(client, "m")["outputs"]
    assert [output["error"] is not None for output in outputs] == [False, True, False]
    assert outputs[1]["stop_condition"] == "has_error"
    assert "in the environment" in outputs[1]["error_chain"]
    assert "test_environment_repairs.py" in outputs[1]["error_chain"]


def test_repair_5_the_default_rubric_works_with_independent_scoring():
    env = whet.SingleTurnEnv(dataset=tasks(2))
    outputs = env.evaluate_sync(whet.ScriptedClient(echo), "m", independent_scoring=True)["outputs"]
    assert [(output["reward"], output["error"]) for output in outputs] == [(0.0, None)] * 2


def test_repair_6_an_environment_is_made_on_any_thread_and_leaves_signals_alone():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    made = []

    def make():
        env = whet.SingleTurnEnv(dataset=tasks(1), rubric=whet.Rubric([right]))
        made.append(env.evaluate_sync(whet.ScriptedClient(echo), "m")["outputs"][0]["reward"])

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert made == [1.0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_repair_6_importing_starts_nothing_and_registers_nothing():
    script = """
import atexit, logging, signal, sys, threading
before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)], threading.active_count(), atexit._ncallbacks()
handlers = list(logging.getLogger().handlers)
import whet; whet.SingleTurnEnv, whet.ToolEnv, whet.MathRubric, whet.load_environment
after = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)], threading.active_count()
assert after == before[:2], (before, after)
assert logging.getLogger().handlers == handlers
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("cls", "given", "meant"),
    [
        (whet.SingleTurnEnv, "systemprompt", "system_prompt"),
        (whet.ToolEnv, "max_turn", "max_turns"),
        (whet.ToolEnv, "tool", "tools"),
    ],
)
def test_repair_7_a_misspelt_argument_suggests_the_right_one(cls, given, meant):
    with pytest.raises(whet.WhetError, match=f"no argument '{given}'. Did you mean '{meant}'"):
        cls(dataset=tasks(), **{given: None})


def test_repair_8_info_of_mixed_types_survives_unchanged():
    infos = [{"n": 1, "x": [1, "a"]}, {"n": "one", "y": {"deep": None}}, {"n": 1.5}]
    rows = [{"question": "?", "info": info} for info in infos]
    env = whet.SingleTurnEnv(dataset=rows)
    outputs = env.evaluate_sync(whet.ScriptedClient(echo), "m")["outputs"]
    assert [output["info"] for output in outputs] == infos
    assert env.get_dataset()["info"] == infos


def test_repair_9_a_finished_rollout_frees_its_place_while_its_siblings_are_scored():
    """Two places, two groups of two: the first group's judge waits until the second group has generated."""
    generated = []
    second_group_is_through = asyncio.Event()

    async def judge(answer):
        if answer == "0":
            await second_group_is_through.wait()
        return 1.0

    async def answer(prompt):
        await asyncio.sleep(0)
        generated.append(prompt[-1].content)
        if generated.count("1") == 2:
            second_group_is_through.set()
        return "x"

    env = whet.SingleTurnEnv(dataset=tasks(2), rubric=whet.Rubric([judge]))

    async def run():
        async with asyncio.timeout(30):
            return await env.evaluate(whet.ScriptedClient(answer), "m", rollouts_per_example=2, max_concurrent=2)

    outputs = asyncio.run(run())["outputs"]
    assert [output["reward"] for output in outputs] == [1.0] * 4
    assert generated == ["0", "0", "1", "1"]


def test_repair_9_places_are_counted_by_rollout():
    running, most = 0, 0

    async def answer(prompt):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return "x"

    env = whet.SingleTurnEnv(dataset=tasks(5))
    env.evaluate_sync(whet.ScriptedClient(answer), "m", rollouts_per_example=4, max_concurrent=3)
    assert most == 3


def test_repair_10_a_seed_shuffles_a_copy():
    env = whet.SingleTurnEnv(dataset=tasks(20))
    shuffled = env.get_dataset(seed=1)
    assert shuffled["example_id"] != list(range(20))
    assert sorted(shuffled["example_id"]) == list(range(20))
    assert env.get_dataset()["example_id"] == list(range(20))
    assert env.get_dataset(seed=1)["example_id"] == shuffled["example_id"]


def test_repair_11_an_unknown_tool_is_answered_with_the_tools_there_are():
    def add(a: int) -> int:
        """Add."""
        return a

    env = whet.ToolEnv(tools=[add], dataset=tasks(1))
    client = whet.ScriptedClient([{"tool_calls": [{"id": "1", "name": "ad", "arguments": "{}"}]}, "done"])
    completion = env.evaluate_sync(client, "m")["outputs"][0]["completion"]
    assert completion[1]["content"] == "there is no tool 'ad'; there are: add"


def test_repair_12_a_hidden_argument_is_the_environments_alone():
    def spend(amount: int, account: str) -> str:
        """Spend."""
        return f"{amount} from {account}"

    class Bank(whet.StatefulToolEnv):
        def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
            return {"account": "own", **tool_args}

    env = Bank(dataset=tasks(1))
    env.add_tool(spend, args_to_skip=["account"])
    call = {"id": "1", "name": "spend", "arguments": '{"amount": 1, "account": "another"}'}
    (output,) = env.evaluate_sync(whet.ScriptedClient([{"tool_calls": [call]}, "done"]), "m")["outputs"]
    assert output["completion"][1]["content"] == "1 from own"
