import json
import re

import pytest

import whet
from my_env import load_environment, split_of

SIGNS = {"plus": "+", "minus": "-", "times": "*"}


def task(**arguments: bool) -> tuple[whet.Environment, str, str]:
    """The environment, and expression and answer of its first task."""
    env = load_environment(num_train=1, num_eval=1, **arguments)
    row = env.get_eval_dataset()[0]
    left, word, right = words_of(row["question"]).split()
    return env, f"{left}{SIGNS[word]}{right}", row["answer"]


def words_of(question: str) -> str:
    match = re.search(r"What is (.+)\?", question)
    assert match, question
    return match[1]


def call(name: str, **arguments: str) -> dict:
    """A model's message that calls a tool."""
    return {"tool_calls": [{"id": "1", "name": name, "arguments": json.dumps(arguments)}]}


def run(env: whet.Environment, answers: list[str | dict]) -> dict:
    """The result row of the first task, when a model answers like this."""
    return env.evaluate_sync(whet.ScriptedClient(answers), "scripted")["outputs"][0]


def test_training_and_evaluation_share_no_sum_whatever_the_seeds() -> None:
    train = {words_of(row["question"]) for seed in (0, 1) for row in load_environment(seed=seed).get_dataset()}
    held_out = {words_of(row["question"]) for seed in (0, 1) for row in load_environment(seed=seed).get_eval_dataset()}
    assert train.isdisjoint(held_out)
    assert {split_of(words) for words in train} == {"train"}


def test_a_program_and_what_it_printed_earn_everything() -> None:
    env, expression, answer = task()
    output = run(env, [call("calculate", expression=expression), answer])
    assert output["completion"][1]["content"] == answer
    assert (output["reward"], output["metrics"]["calculate_calls"]) == (1.0, 1)


def test_what_counts_is_the_answer_and_the_program_is_measured() -> None:
    env, _, answer = task()
    output = run(env, [answer])
    assert (output["reward"], output["metrics"]["computed"]) == (1.0, 0.0)


@pytest.mark.parametrize("text", ["", "0", " ".join(map(str, range(9999)))])
def test_any_other_answer_earns_nothing(text: str) -> None:
    env, expression, _ = task()
    output = run(env, [call("calculate", expression=expression), text])
    assert (output["reward"], output["metrics"]["computed"]) == (0.0, 1.0)


def test_what_is_no_python_is_text_for_the_model_which_may_try_again() -> None:
    env, expression, answer = task()
    output = run(env, [call("calculate", expression="12*"), call("calculate", expression=expression), answer])
    assert "SyntaxError" in output["completion"][1]["content"]
    assert output["reward"] == 1.0


def test_a_program_sees_no_file_of_this_machine() -> None:
    env, *_ = task()
    output = run(env, [call("calculate", expression=f"open({__file__!r}).read()"), "0"])
    assert "FileNotFoundError" in output["completion"][1]["content"]


def test_a_shell_is_offered_only_where_it_is_asked_for() -> None:
    assert [tool["name"] for tool in task()[0].tool_defs] == ["calculate"]
    env, expression, answer = task(with_shell=True)
    output = run(env, [call("bash", command=f"echo $(({expression}))"), answer])
    assert output["reward"] == 1.0


def test_an_attempt_ends_after_max_turns() -> None:
    env, expression, _ = task()
    assert run(env, [call("calculate", expression=expression)] * 3)["stop_condition"] == "max_turns_reached"


def test_a_largest_number_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="between 20 and 999"):
        load_environment(max_number=10)
