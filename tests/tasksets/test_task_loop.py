"""The chat loop of a harness: tools, a user, stops and limits, on the rollout loop of every environment."""

import asyncio

import pytest

import whet
from whet.errors import ConfigError


def add(left: int, right: int, state) -> int:
    """Add two numbers.

    Args:
        left: The first.
        right: The second.
    """
    state["calls"] = state.get("calls", 0) + 1
    return left + right


def submit(answer: str, state) -> str:
    """Hand in an answer."""
    state["answer"] = answer
    state.stop("submitted")
    return "thanks"


def test_an_env_is_an_environment(rows) -> None:
    assert isinstance(whet.Env(whet.Taskset(source=rows())), whet.Environment)


def test_a_model_calls_tools_until_it_answers_without_calling_one(rows, roll, call, texts) -> None:
    (state,) = roll(whet.Env(whet.Taskset(source=rows(), toolsets=[add])), [call("add", left=1, right=2), "3"])
    assert texts(state["completion"]) == [None, "3", "3"]
    assert (state["stop_condition"], state["calls"], len(state["trajectory"])) == ("no_tools", 1, 2)
    assert state["timing"].generation.duration > 0
    assert len(state["timing"].model.spans) == 2


def test_the_model_is_not_told_of_task_and_state_and_cannot_fill_them_in(rows, roll, call) -> None:
    (state,) = roll(
        whet.Env(whet.Taskset(source=rows(), toolsets=[add])), [call("add", left=1, right=2, state={"calls": 9}), "3"]
    )
    (tool,) = state["tool_defs"]
    assert (list(tool["parameters"]["properties"]), tool["parameters"]["required"]) == (["left", "right"],) * 2
    assert state["calls"] == 1


def test_a_failing_call_is_answered_with_the_error_and_the_rollout_goes_on(rows, roll, call, texts) -> None:
    script = [call("add", left=1), call("ad"), {"tool_calls": [{"id": "1", "name": "add", "arguments": "{"}]}, "3"]
    (state,) = roll(whet.Env(whet.Taskset(source=rows(), toolsets=[add])), script)
    answers = [message["content"] for message in state["completion"] if message["role"] == "tool"]
    assert "missing" in answers[0]
    assert answers[1] == "there is no tool 'ad'; there are: add"
    assert state["error"] is None


def test_a_tool_ends_the_rollout_and_the_calls_after_it_are_not_made(rows, roll, call) -> None:
    both = {"tool_calls": [*call("submit", answer="7")["tool_calls"], *call("add", left=1, right=1)["tool_calls"]]}
    (state,) = roll(whet.Env(whet.Taskset(source=rows(), toolsets=[submit, add])), [both])
    assert (state["stop_condition"], state["answer"], state["task"]["answer"]) == ("submitted", "7", "0")
    assert state["completion"][-1]["content"] == "thanks"
    assert "calls" not in state


def test_done_in_the_state_ends_the_rollout_too(rows, roll, call) -> None:
    def finish(state) -> str:
        """Finish."""
        state["done"] = True
        return "ok"

    (state,) = roll(whet.Env(whet.Taskset(source=rows(), toolsets=[finish])), [call("finish"), "more"])
    assert (state["stop_condition"], len(state["trajectory"])) == ("state_done", 1)


def test_the_last_turn_s_calls_are_answered_before_the_limit_ends_the_rollout(rows, roll, call) -> None:
    env = whet.Env(whet.Taskset(source=rows(), toolsets=[add]), whet.Harness(max_turns=2))
    (state,) = roll(env, [call("add", left=1, right=2)] * 3)
    assert (state["stop_condition"], len(state["trajectory"]), state["calls"]) == ("max_turns_reached", 2, 2)
    assert state["completion"][-1]["role"] == "tool"


@pytest.mark.parametrize(("harness", "row", "turns"), [(10, 1, 1), (1, 3, 3), (2, None, 2)])
def test_a_row_s_limit_of_turns_goes_before_the_harness_s(rows, roll, call, harness, row, turns) -> None:
    source = rows(1, max_turns=row) if row else rows()
    env = whet.Env(whet.Taskset(source=source, toolsets=[add]), whet.Harness(max_turns=harness))
    (state,) = roll(env, [call("add", left=1, right=2)] * 5)
    assert len(state["trajectory"]) == turns


def test_a_stop_of_taskset_or_harness_ends_the_rollout_under_its_name(rows, roll, call) -> None:
    class Careful(whet.Taskset):
        @whet.stop
        async def said_enough(self, task, state) -> bool:
            return len(state["trajectory"]) == 2

    (state,) = roll(whet.Env(Careful(source=rows(), toolsets=[add])), [call("add", left=1, right=2)] * 5)
    assert state["stop_condition"] == "said_enough"

    def at_once(task, state) -> bool:
        return bool(state["trajectory"])

    (state,) = roll(whet.Env(whet.Taskset(source=rows(), toolsets=[add]), whet.Harness(stops=[at_once])), ["x"] * 3)
    assert len(state["trajectory"]) == 1


def test_a_user_answers_where_the_model_calls_no_tool(rows, roll, texts) -> None:
    async def user(task, state, transcript):
        assert texts(transcript)[0] == task["question"]
        turns = sum(message["role"] == "assistant" for message in transcript)
        return [] if turns == 3 else [{"role": "user", "content": f"Again, {turns}."}]

    (state,) = roll(whet.Env(whet.Taskset(source=rows(), user=user)), ["a", "b", "c"])
    assert texts(state["completion"]) == ["a", "Again, 1.", "b", "Again, 2.", "c"]
    assert state["stop_condition"] == "no_tools"


def test_a_user_hears_the_last_turn_as_well(rows, roll, texts) -> None:
    def user(task, state, transcript):
        state["heard"] = transcript[-1]["content"]
        return [{"role": "user", "content": "Go on."}]

    (state,) = roll(whet.Env(whet.Taskset(source=rows(), user=user), whet.Harness(max_turns=2)), ["a", "b"])
    assert (state["heard"], state["stop_condition"]) == ("b", "max_turns_reached")


def test_taskset_and_harness_cannot_both_have_a_user(rows) -> None:
    with pytest.raises(ConfigError, match="both have a user"):
        whet.Env(whet.Taskset(source=rows(), user=lambda task: []), whet.Harness(user=lambda task: []))


def test_the_system_prompt_goes_before_the_prompt_and_is_the_task_s_where_it_has_one(rows, roll, texts) -> None:
    (state,) = roll(whet.Env(whet.Taskset(source=rows(), system_prompt="Be brief.")), lambda prompt: prompt[0].content)
    assert texts(state["prompt"]) == ["Be brief.", "What is 0?"]
    assert texts(state["completion"]) == ["Be brief."]
    (state,) = roll(whet.Env(whet.Taskset(source=rows(1, system_prompt="Be kind."))), ["x"])
    assert texts(state["prompt"])[0] == "Be kind."


@pytest.mark.parametrize(
    ("merge", "prompts"),
    [
        ("concat", ["Harness.", "Taskset.", "Task."]),
        ("harness", ["Harness."]),
        ("taskset", ["Taskset."]),
        ("task", ["Task."]),
    ],
)
def test_several_system_prompts_are_merged_as_the_harness_says(rows, roll, texts, merge, prompts) -> None:
    taskset = whet.Taskset(source=rows(1, system_prompt="Task."), system_prompt="Taskset.")
    harness = whet.Harness(system_prompt="Harness.", config={"system_prompt_merge": merge})
    (state,) = roll(whet.Env(taskset, harness), ["x"])
    assert texts(state["prompt"])[:-1] == prompts


def test_several_system_prompts_are_refused_where_nobody_says_which(rows, roll) -> None:
    env = whet.Env(whet.Taskset(source=rows(), system_prompt="A."), whet.Harness(system_prompt="B."))
    with pytest.raises(ConfigError, match="harness and taskset bring a system prompt each"):
        roll(env, ["x"])


def test_the_harness_s_sampling_arguments_are_under_those_of_the_rollout(rows) -> None:
    env = whet.Env(whet.Taskset(source=rows()), whet.Harness(sampling_args={"temperature": 0.5, "top_p": 0.9}))
    seen = []

    def script(sampling_args):
        seen.append(sampling_args)
        return "x"

    env.generate_sync(env.get_dataset(), whet.ScriptedClient(script), "m", {"temperature": 0.1})
    assert seen == [{"temperature": 0.1, "top_p": 0.9}]


def test_a_time_limit_is_that_of_every_environment(rows, roll) -> None:
    class Silent(whet.ScriptedClient):
        async def get_response(self, *args, **kwargs):
            await asyncio.Event().wait()

    (state,) = roll(whet.Env(whet.Taskset(source=rows()), timeout_seconds=0.01), Silent([]))
    assert (state["stop_condition"], state["timed_out"], state["is_truncated"]) == ("timeout_reached", True, False)


@pytest.mark.parametrize("name", ["dataset", "rubric", "system_prompt", "max_turns"])
def test_what_belongs_to_a_taskset_or_a_harness_is_not_given_to_env(rows, name) -> None:
    with pytest.raises(ConfigError, match=f"Env takes no {name}"):
        whet.Env(whet.Taskset(source=rows()), **{name: None})


def test_a_misspelt_argument_of_env_suggests_the_right_one(rows) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'timeout_seconds'"):
        whet.Env(whet.Taskset(source=rows()), timeout_second=1)


def test_settings_of_an_environment_reach_it(rows) -> None:
    env = whet.Env(whet.Taskset(source=rows()), env_id="x", pass_threshold=0.9)
    assert (env.env_id, env.pass_threshold) == ("x", 0.9)


def test_a_harness_runs_a_task_by_itself_and_scores_it_by_its_taskset(rows) -> None:
    def right(task, state) -> float:
        return float(state["completion"][-1]["content"] == task["answer"])

    harness = whet.Harness(client=whet.ScriptedClient(["0"]), model="m")
    taskset = whet.Taskset(source=rows(), rewards=[right])
    whet.Env(taskset, harness)
    state = asyncio.run(harness.run(next(iter(taskset))))
    assert (state["reward"], state["metrics"]["right"], state["is_completed"]) == (1.0, 1.0, True)


def test_a_harness_can_run_many_tasks_and_does_not_read_the_taskset_for_it() -> None:
    def source():
        raise AssertionError("no rows are needed")

    harness = whet.Harness(client=whet.ScriptedClient(lambda prompt: prompt[0].content), model="m")
    whet.Env(whet.Taskset(source=source), harness)

    async def run() -> list[str]:
        return [(await harness.run({"prompt": text}))["completion"][0].content for text in ("a", "b")]

    assert asyncio.run(run()) == ["a", "b"]


def test_a_task_that_is_none_is_refused_by_a_harness() -> None:
    with pytest.raises(whet.WhetError, match="max_turns"):
        asyncio.run(whet.Harness().run({"prompt": "Hi", "max_turns": "many"}))


def test_a_harness_without_a_model_cannot_run_a_task() -> None:
    with pytest.raises(ConfigError, match="needs a client and a model"):
        asyncio.run(whet.Harness().run({"prompt": "Hi"}))


def test_a_harness_whose_program_asks_no_model_needs_none() -> None:
    def program(task, state) -> None:
        state["answer"] = task["question"].upper()

    task = {"prompt": [], "question": "hi"}
    state = asyncio.run(whet.Harness(program=program).run(task))
    assert (state["answer"], state["error"], state["stop_condition"]) == ("HI", None, "program_completed")

    async def asks(session) -> None:
        await session.ask([whet.UserMessage("?")])

    with pytest.raises(ConfigError, match=r"the program asks a model. Harness.run needs a client and a model"):
        asyncio.run(whet.Harness(program=asks).run(task))


def test_a_tool_runs_a_harness_of_its_own_with_the_rollout_s_model(rows, roll, call) -> None:
    helper = whet.Harness()

    async def ask_helper(question: str, state) -> str:
        """Ask a helper."""
        task = whet.Task({"prompt": question}).freeze()
        child = await helper.run(task, state.for_task(task, borrow="model"))
        return child["completion"][-1]["content"]

    def script(prompt, turn):
        if prompt[0].content == "Help!":
            return "helped"
        return call("ask_helper", question="Help!") if turn == 0 else prompt[-1].content

    (state,) = roll(whet.Env(whet.Taskset(source=rows(), toolsets=[ask_helper])), script)
    assert (state["completion"][-1]["content"], len(state["trajectory"])) == ("helped", 2)


@pytest.mark.parametrize("what", [{"borrow": "sandbox"}, {"tools": "add"}, {"transcript": "append"}])
def test_borrowing_what_cannot_be_borrowed_is_refused(what) -> None:
    with pytest.raises(ConfigError, match="borrow"):
        whet.TaskState.for_task({"prompt": []}).for_task({"prompt": []}, **what)
