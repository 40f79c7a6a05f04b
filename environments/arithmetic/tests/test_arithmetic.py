import pytest

import whet
from arithmetic import load_environment


def run(answer: str) -> dict:
    env = load_environment(num_train=1, num_eval=1)
    return env.evaluate_sync(whet.ScriptedClient([answer]), "scripted")["outputs"][0]


def right_answer() -> str:
    return load_environment(num_eval=1).get_eval_dataset()[0]["answer"]


def test_training_and_evaluation_share_no_sum_whatever_the_seeds() -> None:
    def sums(seed: int, split: str) -> set[str]:
        env = load_environment(seed=seed, num_train=10_000, num_eval=10_000)
        return {row["question"] for row in (env.get_dataset() if split == "train" else env.get_eval_dataset())}

    assert (sums(0, "train") | sums(1, "train")).isdisjoint(sums(0, "eval") | sums(1, "eval"))


def test_there_are_256_different_sums_to_evaluate_on() -> None:
    assert len({row["question"] for row in load_environment().get_eval_dataset()}) == 256


def test_the_answers_are_right_and_never_negative() -> None:
    for row in load_environment().get_dataset():
        left, sign, right = row["question"].split("What is ")[1].rstrip("?").split()
        assert int(row["answer"]) == (int(left) + int(right) if sign == "+" else int(left) - int(right)) >= 0


def test_the_boxed_result_earns_everything() -> None:
    output = run(f"\\boxed{{{right_answer()}}}")
    assert output["reward"] == 1.0
    assert output["metrics"]["exact_match"] == 1.0


def test_a_result_without_a_box_earns_nothing() -> None:
    assert run(right_answer())["reward"] == 0.0


def test_another_number_earns_nothing() -> None:
    assert run(f"\\boxed{{{int(right_answer()) + 1}}}")["reward"] == 0.0


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="max_number"):
        load_environment(max_number=1000)
