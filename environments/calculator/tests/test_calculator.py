import json

import pytest

import whet
from calculator import MAX_EXPRESSION_LENGTH, calculate, load_environment

SIGNS = {"plus": "+", "minus": "-", "times": "*"}


def call(expression: str) -> dict:
    return {
        "content": "",
        "tool_calls": [{"id": "1", "name": "calculate", "arguments": f'{{"expression": "{expression}"}}'}],
    }


def run(answers: list[object]) -> dict:
    env = load_environment(num_train=1, num_eval=1)
    return env.evaluate_sync(whet.ScriptedClient(answers), "scripted")["outputs"][0]


def task() -> tuple[str, str]:
    row = load_environment(num_eval=1).get_eval_dataset()[0]
    left, word, right = row["question"].split("What is ")[1].rstrip("?").split()
    return left + SIGNS[word] + right, row["answer"]


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("12*34", "408"),
        (" 1 + 2 ", "3"),
        ("-(3 - 5) * 2.5", "5"),
        ("7/2", "3.5"),
        ("1/3", "0.3333333333"),
        ("99999999999 * 99999999999", "9999999999800000000001"),
    ],
)
def test_the_calculator_calculates(expression: str, result: str) -> None:
    assert calculate(expression) == result


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os')",
        "x",
        "2**9",
        "1 if 1 else 2",
        "'a'*3",
        "True",
        "abs(1)",
        "",
        "1+",
        "(" * 100 + ")" * 100,
        "1j",
    ],
)
def test_anything_but_arithmetic_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"arithmetic|allowed"):
        calculate(expression)


@pytest.mark.parametrize("expression", ["1/0", "1e308*10", "1e308*10-1e308*10", "1" * (MAX_EXPRESSION_LENGTH + 1)])
def test_what_has_no_finite_value_or_no_end_is_refused(expression: str) -> None:
    with pytest.raises((ValueError, ZeroDivisionError)):
        calculate(expression)


def test_training_and_evaluation_share_no_sum_whatever_the_seeds() -> None:
    def sums(seed: int, split: str) -> set[str]:
        env = load_environment(seed=seed)
        return {row["question"] for row in (env.get_dataset() if split == "train" else env.get_eval_dataset())}

    assert (sums(0, "train") | sums(1, "train")).isdisjoint(sums(0, "eval") | sums(1, "eval"))


def test_the_answers_are_right() -> None:
    for row in load_environment(num_train=300).get_dataset():
        left, word, right = row["question"].split("What is ")[1].rstrip("?").split()
        assert calculate(left + SIGNS[word] + right) == row["answer"]


def test_the_right_number_from_a_real_call_earns_everything() -> None:
    expression, answer = task()
    output = run([call(expression), answer])
    assert output["reward"] == 1.0
    assert output["metrics"]["exact_match"] == 1.0
    assert output["metrics"]["calculate_calls"] == 1


def test_the_right_number_without_a_call_earns_nothing() -> None:
    _, answer = task()
    output = run([answer])
    assert output["reward"] == 0.0
    assert output["metrics"]["exact_match"] == 1.0


def test_another_number_than_the_tool_found_earns_nothing() -> None:
    expression, answer = task()
    output = run([call(expression), answer + "0"])
    assert output["reward"] == 0.0
    assert output["metrics"]["tool_found_it"] == 1.0


def test_a_failed_call_is_told_to_the_model_and_can_be_mended() -> None:
    expression, answer = task()
    output = run([call("12*"), call(expression), answer])
    assert "not an arithmetic expression" in output["completion"][1]["content"]
    assert output["reward"] == 1.0


def test_an_attempt_ends_after_max_turns() -> None:
    output = run([call("1+1")] * 3)
    assert output["reward"] == 0.0
    assert output["stop_condition"] == "max_turns_reached"


def test_worked_examples_come_before_the_question_and_count_for_nothing() -> None:
    env = load_environment(num_train=1, num_eval=1, examples=4)
    row = env.get_eval_dataset()[0]
    assert [message["role"] for message in row["prompt"]] == ["user", "assistant", "tool", "assistant"] * 4 + ["user"]
    operations = []
    for question, with_call, result, answer in zip(*(row["prompt"][n:-1:4] for n in range(4)), strict=True):
        left, word, right = question["content"].split("What is ")[1].rstrip("?").split()
        operations.append(word)
        [called] = with_call["tool_calls"]
        assert json.loads(called["arguments"]) == {"expression": left + SIGNS[word] + right}
        assert calculate(left + SIGNS[word] + right) == result["content"] == answer["content"]
    assert operations == ["plus", "minus", "times", "plus"]
    output = env.evaluate_sync(whet.ScriptedClient([row["answer"]]), "scripted")["outputs"][0]
    assert output["reward"] == 0.0
    assert output["metrics"]["total_tool_calls"] == 0


@pytest.mark.parametrize(
    "args", [{"max_number": 5}, {"examples": -1}, {"examples": 17}, {"operations": ("power",)}, {"operations": ()}]
)
def test_arguments_that_make_no_sense_are_refused(args: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        load_environment(**args)
