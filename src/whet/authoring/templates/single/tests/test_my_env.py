import re

import pytest

import whet
from my_env import load_environment, split_of


def run(answer: str) -> dict:
    """The result row of the first task, when a model answers like this."""
    env = load_environment(num_train=1, num_eval=1)
    return env.evaluate_sync(whet.ScriptedClient([answer]), "scripted")["outputs"][0]


def right_answer() -> int:
    return int(load_environment(num_eval=1).get_eval_dataset()[0]["answer"])


def sum_of(question: str) -> str:
    match = re.search(r"What is (.+)\?", question)
    assert match, question
    return match[1]


def test_training_and_evaluation_share_no_sum_whatever_the_seeds() -> None:
    train = {sum_of(row["question"]) for seed in (0, 1) for row in load_environment(seed=seed).get_dataset()}
    held_out = {sum_of(row["question"]) for seed in (0, 1) for row in load_environment(seed=seed).get_eval_dataset()}
    assert train.isdisjoint(held_out)
    assert {split_of(expression) for expression in train} == {"train"}


def test_the_answers_are_right() -> None:
    for row in load_environment(num_train=200).get_dataset():
        left, sign, right = sum_of(row["question"]).split()
        assert int(row["answer"]) == (int(left) + int(right) if sign == "+" else int(left) - int(right))


def test_the_right_number_earns_everything() -> None:
    output = run(f"It is \\boxed{{{right_answer()}}}.")
    assert (output["reward"], output["metrics"]["exact_match"]) == (1.0, 1.0)


def test_a_nearer_number_earns_more() -> None:
    rewards = [run(f"\\boxed{{{right_answer() + off}}}")["reward"] for off in range(5)]
    assert rewards == pytest.approx([1, 0.2 / 2, 0.2 / 3, 0.2 / 4, 0.2 / 5])


@pytest.mark.parametrize("answer", ["", "I do not know.", "\\boxed{}", "\\boxed{1 2 3}", "\\boxed{\u00b2}"])
def test_what_is_not_one_number_earns_nothing(answer: str) -> None:
    assert run(answer)["reward"] == 0.0


def test_a_number_of_many_digits_earns_nothing() -> None:
    assert run(f"\\boxed{{{'9' * 9999}}}")["reward"] == 0.0


def test_the_right_number_outside_the_box_earns_nothing() -> None:
    assert run(str(right_answer()))["reward"] == 0.0


def test_a_largest_number_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="between 9 and 999"):
        load_environment(max_number=1000)
