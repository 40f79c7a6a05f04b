"""Differences from the 0.1 environment contract that running both libraries has shown, by number.

1 to 12 are in `test_environment_repairs.py`; all of them are explained in docs/design/environments.md.

13. Sampling arguments are those that were given.
14. Metadata says when a run was made and by which whet; a results_path is written to.
15. Rows of an EnvGroup have the metrics of all its environments.
16. A mistake is a WhetError.
17. Errors say what happened.
18. A rollout is attempted again by itself.
19. Setup handlers run, and clean-up handlers may take the task.
20. Arguments that are no object are answered with that.
21. Reward functions may be partials or objects.
22. Tools may take dicts, *args and **kwargs.
23. The default judge prompt is our own.
24. A seeded shuffle is Python's.
25. Tokens of a step carry their policy version.
26. A message's missing fields are missing.
27. ReasoningGymEnv counts turns in code that imports whet, and in other code not. Where reasoning-gym is installed:
    tests/parity/test_definitions.py::test_reasoning_gym_counts_turns_in_code_that_imports_whet.
28. A GymEnv ends with the episode.
29. A column called task is a column like others.
30. Arguments of a call are of the types in the tool's schema, and may be left out.
31. Metrics take no place of a field of rows, and different functions of one name are numbered.
32. More boxes are found, and none in thoughts that were cut off.
33. MathRubric compares numbers by their size.
"""

import functools
import json
import random

import pytest

import whet
from whet.envs.tool_schemas import tool_from_function


def tasks(count=2):
    return [{"question": str(index), "answer": str(index)} for index in range(count)]


def echo(prompt):
    return prompt[-1].content


def test_difference_13_a_request_has_the_sampling_arguments_that_were_given():
    seen = []

    def answer(sampling_args):
        seen.append(sampling_args)
        return "x"

    env = whet.SingleTurnEnv(dataset=tasks(1), sampling_args={"temperature": 0.5})
    env.evaluate_sync(whet.ScriptedClient(answer), "m", {"max_tokens": 3})
    assert seen == [{"temperature": 0.5, "max_tokens": 3}]


def test_difference_14_metadata_on_disk_says_when_and_by_which_version(tmp_path):
    whet.SingleTurnEnv(dataset=tasks(1)).evaluate_sync(whet.ScriptedClient(echo), "m", results_path=tmp_path)
    metadata = json.loads((tmp_path / "metadata.json").read_text())
    assert metadata["date"]
    assert metadata["version_info"] == {"whet": whet.__version__}


def test_difference_15_rows_of_a_group_have_the_metrics_of_all_its_environments():
    def short(completion):
        return 1.0

    def long(completion):
        return 1.0

    envs = [whet.SingleTurnEnv(dataset=tasks(1), rubric=whet.Rubric([func])) for func in (short, long)]
    results = whet.EnvGroup(envs).evaluate_sync(whet.ScriptedClient(echo), "m")
    assert [(row["metrics"]["short"], row["metrics"]["long"]) for row in results["outputs"]] == [(1.0, 0.0), (0.0, 1.0)]
    assert results["metadata"]["avg_metrics"]["short"] == 0.5


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: whet.SingleTurnEnv(),
        lambda: whet.SingleTurnEnv(dataset=[{"answer": "no question"}]),
        lambda: whet.Rubric([echo], weights=[1.0, 2.0]),
        lambda: whet.EnvGroup([]),
    ],
)
def test_difference_16_a_mistake_is_a_whet_error(mistake):
    with pytest.raises(whet.WhetError):
        mistake()


def test_difference_17_an_error_of_a_call_says_what_happened():
    def divide(a: int, b: int) -> float:
        """Divide."""
        return a / b

    env = whet.ToolEnv(tools=[divide], dataset=tasks(1), stop_errors=[ZeroDivisionError])
    call = {"id": "1", "name": "divide", "arguments": '{"a": 1, "b": 0}'}
    (row,) = env.evaluate_sync(whet.ScriptedClient([{"tool_calls": [call]}]), "m")["outputs"]
    assert row["error"]["error_chain_repr"].startswith("ToolCallError(\"'divide' raised ZeroDivisionError")


def test_difference_18_a_rollout_is_attempted_again_by_itself(monkeypatch):
    monkeypatch.setattr("whet.rollouts.groups.LONGEST_PAUSE_S", 0.0)
    asked = []

    def answer(prompt):
        asked.append(1)
        return whet.InfraError("down") if len(asked) == 2 else f"attempt {len(asked)}"

    env = whet.SingleTurnEnv(dataset=tasks(1))
    rows = env.evaluate_sync(whet.ScriptedClient(answer), "m", rollouts_per_example=3, max_retries=1)["outputs"]
    assert [row["completion"][0]["content"] for row in rows] == ["attempt 1", "attempt 4", "attempt 3"]


def test_difference_19_setup_handlers_run_and_clean_up_may_take_the_task():
    seen = []

    class Env(whet.SingleTurnEnv):
        @whet.setup
        async def prepare(self, state):
            seen.append("prepared")

        async def setup_state(self, state):
            seen.append("set up")

        @whet.cleanup
        async def tidy(self, task):
            seen.append(task["question"])

    Env(dataset=tasks(1)).evaluate_sync(whet.ScriptedClient(echo), "m")
    assert seen == ["prepared", "set up", "0"]


@pytest.mark.parametrize("cls", [whet.ToolEnv, whet.StatefulToolEnv])
def test_difference_20_arguments_that_are_no_object_are_answered_with_that(cls):
    class Env(cls):
        def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
            return tool_args

    def add(a: int) -> int:
        """Add."""
        return a

    env = Env(tools=[add], dataset=tasks(1))
    call = {"id": "1", "name": "add", "arguments": "[1]"}
    (row,) = env.evaluate_sync(whet.ScriptedClient([{"tool_calls": [call]}, "done"]), "m")["outputs"]
    assert row["completion"][1]["content"] == "the arguments should be a JSON object, not [1]"


def test_difference_21_partials_and_objects_are_reward_functions():
    def at_least(completion, least):
        return float(len(completion[-1].content) >= least)

    class Constant:
        def __call__(self, completion):
            return 0.5

    rubric = whet.Rubric([functools.partial(at_least, least=1), Constant()])
    (row,) = whet.SingleTurnEnv(dataset=tasks(1), rubric=rubric).evaluate_sync(whet.ScriptedClient(echo), "m")[
        "outputs"
    ]
    assert (row["reward"], row["metrics"]["at_least"], row["metrics"]["Constant"]) == (1.5, 1.0, 0.5)


def test_difference_22_a_tool_may_take_dicts_and_any_number_of_arguments():
    def tool(table: dict[str, int], *more: str, **rest: float) -> str:
        """A tool.

        Args:
            table: a table, which
                goes on here
        """
        return ""

    properties = tool_from_function(tool)["parameters"]["properties"]
    assert properties["table"]["additionalProperties"] == {"type": "integer"}
    assert properties["table"]["description"] == "a table, which goes on here"
    assert (properties["more"]["type"], properties["rest"]["type"]) == ("array", "object")


def test_difference_23_a_judge_is_asked_in_words_of_our_own_for_yes_or_no():
    asked = []

    def answer(prompt):
        asked.append(prompt[0].content)
        return "yes"

    async def correct(judge, prompt, completion, answer, state):
        return float(await judge(prompt, completion, answer, state) == "yes")

    rubric = whet.JudgeRubric(judge_client=whet.ScriptedClient(answer))
    rubric.add_reward_func(correct)
    whet.SingleTurnEnv(dataset=tasks(1), rubric=rubric).evaluate_sync(whet.ScriptedClient(["mine"]), "m")
    assert asked[0].startswith("Is the response to the question correct?")
    assert asked[0].endswith('Answer with "yes" or "no" and nothing else.')


def test_difference_24_a_seeded_order_is_that_of_pythons_random():
    env = whet.SingleTurnEnv(dataset=tasks(8))
    expected = list(range(8))
    random.Random(3).shuffle(expected)
    assert env.get_dataset(seed=3)["example_id"] == expected


def test_difference_25_tokens_of_a_step_carry_their_policy_version():
    states = []
    tokens = whet.ResponseTokens([1, 2], [3, 4], [-0.1, -0.2], policy_version=[[7, 2]])

    def note(state):
        states.append(state)
        return 0.0

    env = whet.SingleTurnEnv(dataset=tasks(1), rubric=whet.Rubric([note]))
    env.evaluate_sync(whet.ScriptedClient([{"content": "x", "tokens": tokens}]), "m")
    assert states[0]["trajectory"][0]["tokens"]["policy_version"] == [[7, 2]]


def test_difference_26_a_field_that_a_message_has_not_is_missing():
    message = whet.AssistantMessage(content="x")
    assert "tool_calls" not in message
    assert message.get("tool_calls", "none") == "none"
    assert message.tool_calls is None
    with pytest.raises(KeyError):
        message["nothing"]


def test_difference_28_a_gym_env_ends_with_the_episode():
    class Countdown:
        def reset(self, seed):
            self.left = 2
            return "two left"

        def step(self, action):
            self.left -= 1
            return f"{self.left} left", 1.0, self.left == 0, {}

    env = whet.GymEnv(Countdown, num_train_episodes=1, num_eval_episodes=0)
    (row,) = env.evaluate_sync(whet.ScriptedClient(["go", "go"]), "m")["outputs"]
    assert (row["reward"], row["metrics"]["num_turns"], row["stop_condition"]) == (2.0, 2.0, "is_done")
    assert row["completion"][-1]["content"] == "0 left\nEpisode already ended."


@pytest.mark.parametrize("task", ["sums", {"level": 3}])
def test_difference_29_a_column_called_task_is_a_column_like_others(task):
    seen = []

    def note(task, answer):
        seen.append((task, answer))
        return 1.0

    env = whet.SingleTurnEnv(dataset=[{**tasks(1)[0], "task": task}], rubric=whet.Rubric([note]))
    (row,) = env.evaluate_sync(whet.ScriptedClient(echo), "m")["outputs"]
    assert seen == [(task, "0")]
    assert (row["reward"], row["answer"]) == (1.0, "0")


@pytest.mark.parametrize(
    ("arguments", "answer"), [("", "0"), ("null", "0"), ('"{}"', "0"), ('{"to": "2"}', "2"), ('{"to": "x"}', None)]
)
def test_difference_30_arguments_are_of_the_types_in_the_schema(arguments, answer):
    def count(to: int = 0) -> str:
        """Count."""
        return f"{to + 0}"

    call = whet.ToolCall("1", "count", arguments)
    env = whet.ToolEnv(dataset=tasks(1), tools=[count])
    (row,) = env.evaluate_sync(whet.ScriptedClient([{"tool_calls": [call]}, "done"]), "m")["outputs"]
    assert row["completion"][1]["content"] == (answer or "'to' should be an integer, not 'x'")


def test_difference_31_metrics_take_no_place_of_a_field():
    def reward(completion):
        return 0.25

    def error(completion):
        return 1.0

    rubric = whet.Rubric([reward, error, lambda completion: 2.0, lambda completion: 4.0], [1.0, 0.0, 0.0, 0.0])
    env = whet.SingleTurnEnv(dataset=tasks(1), rubric=whet.RubricGroup([rubric, whet.Rubric([lambda answer: 8.0])]))
    (row,) = env.evaluate_sync(whet.ScriptedClient(echo), "m")["outputs"]
    assert (row["reward"], row["error"]) == (8.25, None)
    numbered = {"<lambda>": 2.0, "<lambda>_2": 4.0, "<lambda>_3": 8.0}
    assert row["metrics"] == {"reward": 0.25, "error": 1.0, **numbered, "num_turns": 1.0}


@pytest.mark.parametrize(
    ("reply", "reward"), [("\\boxed {3}", 1.0), ("\\fbox{3}", 1.0), ("\\boxed{3.}", 1.0), ("<think>\\boxed{3}", 0.0)]
)
def test_difference_32_boxes(reply, reward):
    env = whet.SingleTurnEnv(dataset=[{"question": "?", "answer": "3"}], rubric=whet.MathRubric())
    (row,) = env.evaluate_sync(whet.ScriptedClient([reply]), "m")["outputs"]
    assert row["reward"] == reward


def test_difference_33_numbers_are_compared_by_size():
    pytest.importorskip("math_verify", reason="math extra missing")
    cases = [
        ("6.626\\times10^{-34}", "9.1\\times10^{-31}", 0.0),
        (1e-7, "4e-7", 0.0),
        (1e-7, "0.0000001", 1.0),
        (["1", "2"], "2, 1", 1.0),
        (["1", "2"], "1", 0.0),
        (None, "None", 0.0),
        (0, "0", 1.0),
    ]
    dataset = [{"question": f"\\boxed{{{reply}}}", "answer": answer} for answer, reply, _ in cases]
    env = whet.SingleTurnEnv(dataset=dataset, rubric=whet.MathRubric(max_workers=1))
    rows = sorted(env.evaluate_sync(whet.ScriptedClient(echo), "m")["outputs"], key=lambda row: row["example_id"])
    assert [(row["reward"], row.get("answer")) for row in rows] == [(reward, answer) for answer, _, reward in cases]
