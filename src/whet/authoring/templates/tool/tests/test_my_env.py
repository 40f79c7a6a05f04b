import json
import re

import pytest

import whet
from my_env import calculate, load_environment, split_of

SIGNS = {"plus": "+", "minus": "-", "times": "*"}


def task() -> tuple[whet.Environment, str, str]:
    """The environment, and expression and answer of its first task."""
    env = load_environment(num_train=1, num_eval=1)
    row = env.get_eval_dataset()[0]
    left, word, right = words_of(row["question"]).split()
    return env, f"{left}{SIGNS[word]}{right}", row["answer"]


def words_of(question: str) -> str:
    match = re.search(r"What is (.+)\?", question)
    assert match, question
    return match[1]


def call(expression: str) -> dict:
    """A model's message that calls the tool."""
    return {"tool_calls": [{"id": "1", "name": "calculate", "arguments": json.dumps({"expression": expression})}]}


def run(env: whet.Environment, answers: list[str | dict]) -> dict:
    """The result row of the first task, when a model answers like this."""
    return env.evaluate_sync(whet.ScriptedClient(answers), "scripted")["outputs"][0]


def test_training_and_evaluation_share_no_sum_whatever_the_seeds() -> None:
    train = {words_of(row["question"]) for seed in (0, 1) for row in load_environment(seed=seed).get_dataset()}
    held_out = {words_of(row["question"]) for seed in (0, 1) for row in load_environment(seed=seed).get_eval_dataset()}
    assert train.isdisjoint(held_out)
    assert {split_of(words) for words in train} == {"train"}


@pytest.mark.parametrize(("expression", "result"), [("12*34", "408"), (" 3 - 10 ", "-7"), ("99+1", "100")])
def test_the_tool_computes(expression: str, result: str) -> None:
    assert calculate(expression) == result


def test_a_call_and_its_result_earn_everything() -> None:
    env, expression, answer = task()
    output = run(env, [call(expression), answer])
    assert (output["reward"], output["metrics"]["calculate_calls"]) == (1.0, 1)


def test_what_counts_is_the_answer_and_the_tool_is_measured() -> None:
    env, _, answer = task()
    output = run(env, [answer])
    assert (output["reward"], output["metrics"]["tool_found_it"]) == (1.0, 0.0)


@pytest.mark.parametrize("text", ["", "0", " ".join(map(str, range(9999)))])
def test_any_other_answer_earns_nothing(text: str) -> None:
    env, expression, _ = task()
    output = run(env, [call(expression), text])
    assert (output["reward"], output["metrics"]["tool_found_it"]) == (0.0, 1.0)


def test_what_is_no_sum_is_told_to_the_model_which_may_try_again() -> None:
    env, expression, answer = task()
    output = run(env, [call("__import__('os')"), call(expression), answer])
    replies = [message["content"] for message in output["completion"] if message["role"] == "tool"]
    assert replies == ["this calculator knows two numbers with +, - or * between them", answer]
    assert output["reward"] == 1.0


def test_an_attempt_ends_after_max_turns() -> None:
    env, expression, _ = task()
    assert run(env, [call(expression)] * 3)["stop_condition"] == "max_turns_reached"


def test_a_largest_number_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="between 20 and 999"):
        load_environment(max_number=10)
